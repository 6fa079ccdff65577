"""`health()` before, during and after, through the module and the profiler."""

import cirron as ci


def shown(health: dict) -> None:
    names = (
        "enabled", "scope_drop_count", "mark_drop_count", "spool_drop_count", "flush_mode",
        "swallowed_error_count", "swallowed_errors", "flush_restart_count", "installed_hooks",
        "platform_context",
    )  # fmt: skip
    print({name: health[name] for name in names}, "spool_bytes" in health, "transport" in health)
    print(str(health["spool_dir"]).endswith(".cirron/spool"))


shown(ci.health())
profiler = ci.profile(frameworks=[], snapshots=None)
with ci.scope("one"):
    ci.mark("loss", 1.0)
profiler.flush()
shown(ci.health())
shown(profiler.health())
print(ci.health()["spool_bytes"] > 0)
ci.shutdown()
print(ci.health()["enabled"])
