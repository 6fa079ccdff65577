"""The beginning of a session: its options of joining, its provider, its segments and its place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from ..config import Config
from ..errors import CirronOtelError
from ..spool.owner import Owner
from ..spool.paths import SpoolPaths, target_spool
from .errors import reported, swallowed
from .identity import Identity
from .joining import Joined, join
from .provider import applications_provider, make_provider, sampler_of
from .resource import resource_of
from .run_identity import RunIdentity
from .scope import Scope
from .session import open_session, sampling
from .span_processor import ForeignSpanProcessor
from .traces import Segments

_UNLIMITED = 1 << 62


@dataclass(slots=True)
class Joining:
    """What the caller says about the traces around the session."""

    parent: object = None
    link: object = None
    provider: TracerProvider | None = None
    """The provider to work in; None: the application's, else one of ours that becomes global."""
    processor: ForeignSpanProcessor | None = None
    """Our processor, where the application has added it itself."""
    identity: Identity | None = None
    """Which process of its job this is; None: what the launcher's variables say."""
    begun: int | None = None
    """When the session began, by `clock.now`; None: now."""
    environment_first: bool = False
    """Whether the trace that the environment names goes before the span that is current."""
    run: RunIdentity | None = None
    """The run that the session belongs to; None: `run_identity` finds out."""
    hyperparameters: Mapping[str, Any] | None = None
    """Values of the user's that describe the run."""


class Begun(NamedTuple):
    """A session that has begun, and the provider it works in."""

    session: Scope
    joined: Joined
    resource: Resource
    provider: TracerProvider | None
    """None where the application adds our processor to a provider that is not known yet."""
    is_own: bool
    """Whether the provider is one of ours."""


def begin_session(
    config: Config,
    environ: Mapping[str, str],
    identity: Identity,
    joining: Joining,
    run: RunIdentity,
) -> Begun:
    """Open the session; where the application has no provider, make one."""
    provider = _given(joining.provider) or applications_provider()
    # Where the application adds our processor itself, its provider may be made known later.
    is_own = joining.processor is None and (
        provider is None or getattr(provider, "_is_cirrons", False)
    )
    joined = join(
        config.join, environ, joining.parent, joining.link,
        environment_first=joining.environment_first,
    )  # fmt: skip
    session = open_session(joined, sampler_of(provider) if provider is not None else None)
    session._start = joining.begun or session._start
    resource = resource_of(config, identity, session.id, run, joining.hyperparameters)
    if provider is None and is_own:
        provider = make_provider(resource, environ)
        provider._is_cirrons = True  # type: ignore[attr-defined]
        _sample(provider, joined, session)
    elif provider is not None and not is_own:
        resource = resource.merge(provider.resource)
    return Begun(session, joined, resource, provider, is_own)


def _given(provider: object) -> TracerProvider | None:
    """The provider that the caller names, if it is one."""
    if provider is None or isinstance(provider, TracerProvider):
        return provider
    reported("provider", f"provider= is a {type(provider).__name__}: expected a TracerProvider of"
             " the OpenTelemetry SDK; it is not used")  # fmt: skip
    return None


def _sample(provider: TracerProvider, joined: Any, session: Any) -> None:
    """As our own provider's sampler says of the session, now that there is one."""
    around = session._trace
    around.flags, around.state = sampling(sampler_of(provider), around.trace_id, joined)


def segments_of(config: Config, identity: Identity, session: Any, *, is_shared: bool) -> Segments:
    """In a trace that several ranks share, each takes its part (design of the trace layout)."""
    if config.trace_layout == "session":
        return Segments(session.id, session._trace, _UNLIMITED, _UNLIMITED)
    ranks = max(identity.world_size, 1) if is_shared else 1
    records = max(config.segment_records // ranks, 1)
    age_ns = int(config.segment_seconds * 1e9)
    return Segments(session.id, session._trace, records, age_ns)


def place_of(config: Config, is_spooled: bool) -> tuple[SpoolPaths, Owner]:
    """Where the spool stands, and this process as a writer of it."""
    paths = target_spool(config.output_dir)
    try:
        if is_spooled:
            return paths, Owner.acquire(paths)
    except CirronOtelError as error:
        # The disk may be full now and not later: every flush tries again.
        swallowed("spool", error)
    return paths, Owner(paths, os.urandom(6).hex())
