from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.sdk.session.identity import Identity

SLURM_TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_NODEID": "1",
}
SLURM_BATCH_SCRIPT = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_NODEID": "0",
}
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "nightly",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_NODE_RANK": "2",
    "PMIX_RANK": "6",
    "PMIX_NAMESPACE": "prterun-node1-77@1",
}
INDEXED_JOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "2",
    "HOSTNAME": "train-bert-2",
}
FROM_TORCHRUN = Identity(3, 1, 4, "nightly", 1, 2, "torchrun")

CASES: dict[str, tuple[dict[str, str], Identity]] = {
    "nothing": ({}, Identity()),
    "torchrun": (TORCHRUN, FROM_TORCHRUN),
    "torchrun in a step of Slurm": (SLURM_TASK | TORCHRUN, FROM_TORCHRUN),
    "torchrun in everything": (SLURM_TASK | OPEN_MPI | INDEXED_JOB | TORCHRUN, FROM_TORCHRUN),
    "torchrun's default run id names nothing": (
        TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"},
        Identity(3, 1, 4, None, 1, 2, "torchrun"),
    ),
    "torchrun's default run id in a Slurm job": (
        SLURM_BATCH_SCRIPT | TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"},
        Identity(3, 1, 4, "4711", 1, 2, "torchrun"),
    ),
    "a rank without a size": ({"RANK": "3"}, Identity(3, None, 4, source="torchrun")),
    "a size that is too small": (
        {"RANK": "3", "WORLD_SIZE": "3"},
        Identity(3, None, 4, source="torchrun"),
    ),
    "a local rank beyond the size": (
        {"RANK": "0", "LOCAL_RANK": "9", "WORLD_SIZE": "2"},
        Identity(0, None, 2, source="torchrun"),
    ),
    "a local rank alone": (
        {"LOCAL_RANK": "3", "WORLD_SIZE": "8"},
        Identity(3, 3, 8, source="torchrun"),
    ),
    "a local rank of the first node": (
        {"LOCAL_RANK": "3", "NODE_RANK": "0"},
        Identity(3, 3, 4, node_rank=0, source="torchrun"),
    ),
    "a local rank of another node says no rank": (
        {"LOCAL_RANK": "3", "NODE_RANK": "1"},
        Identity(),
    ),
    "a rank that is none does not become the local one": (
        {"RANK": "x", "LOCAL_RANK": "3"},
        Identity(),
    ),
    "garbage in torchrun's names": (
        SLURM_TASK | {"RANK": "-1"},
        Identity(5, 1, 8, "4711", 1, 0, "slurm"),
    ),
    "Open MPI": (OPEN_MPI, Identity(6, 2, 8, "prterun-node1-77@1", source="openmpi")),
    "Open MPI in a Slurm job": (
        SLURM_BATCH_SCRIPT | OPEN_MPI,
        Identity(6, 2, 8, "prterun-node1-77@1", source="openmpi"),
    ),
    "srun with PMIx": (
        SLURM_TASK | {"PMIX_RANK": "5", "PMIX_NAMESPACE": "slurm.pmix.4711.0"},
        Identity(5, 1, 8, "4711", 1, 0, "pmix"),
    ),
    "PMI without Slurm": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"},
        Identity(1, 0, 2, source="pmi"),
    ),
    "srun with PMI": (SLURM_TASK | {"PMI_RANK": "5"}, Identity(5, 1, 8, "4711", 1, 0, "pmi")),
    "Slurm": (SLURM_TASK, Identity(5, 1, 8, "4711", 1, 0, "slurm")),
    "a step smaller than its job": (
        SLURM_TASK | {"SLURM_STEP_NUM_TASKS": "6"},
        Identity(5, 1, 6, "4711", 1, 0, "slurm"),
    ),
    "a job that was requeued": (
        SLURM_TASK | {"SLURM_RESTART_COUNT": "1"},
        Identity(5, 1, 8, "4711", 1, 1, "slurm"),
    ),
    "a batch script is no task": (SLURM_BATCH_SCRIPT, Identity(job_id="4711")),
    "nor is the batch step": (
        SLURM_BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967291"},
        Identity(job_id="4711"),
    ),
    "nor an interactive step": (
        SLURM_BATCH_SCRIPT | {"SLURM_STEP_ID": "4294967290"},
        Identity(job_id="4711"),
    ),
    "an indexed Job": (INDEXED_JOB, Identity(2, None, 3, "train-bert", source="kubernetes")),
    "an indexed Job's pod name": (
        INDEXED_JOB | {"POD_NAME": "train-2-2-x7f9k", "WORLD_SIZE": "16"},
        Identity(2, None, 16, "train-2", source="kubernetes"),
    ),
    "a pod that is named otherwise": (
        INDEXED_JOB | {"HOSTNAME": "train-bert-22"},
        Identity(2, None, 3, source="kubernetes"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_identity_is_derived_from_launcher_variables(name: str) -> None:
    environ, expected = CASES[name]
    assert Identity.from_environment(environ) == expected


VARIABLES = sorted({name for environ, _ in CASES.values() for name in environ})
GARBAGE = st.text(max_size=12) | st.sampled_from(
    ["", " ", "-1", "1.0", "0x1", "1_0", "٣", "9" * 400, "NaN", "none", "\udcff", "3", " 2 ", "0"]
)


@given(st.dictionaries(st.sampled_from(VARIABLES), GARBAGE))
def test_garbage_variables_yield_a_valid_identity(environ: dict[str, str]) -> None:
    found = Identity.from_environment(environ)
    assert 0 <= found.rank < found.world_size
    assert found.local_rank is None or 0 <= found.local_rank < found.world_size
    assert found.restart_count >= 0
    assert found.job_id is None or found.job_id.strip()
    assert (found.source == "none") <= (found.rank == 0)


@pytest.mark.parametrize("text", ["-1", "1.0", "0x1", "1_0", "٣", "9" * 10, "1 2", "\udcff"])
def test_non_numeric_rank_variables_are_ignored(text: str) -> None:
    for variable in ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "JOB_COMPLETION_INDEX"):
        assert Identity.from_environment({variable: text}) == Identity()
