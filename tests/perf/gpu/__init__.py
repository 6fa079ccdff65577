"""What can be shown on a real GPU alone, measured and told by itself.

    python -m tests.perf.gpu [CHECK ...] [--json FILE] [--list] [--rehearse]

in the root of a checkout, on a machine with one NVIDIA GPU, with a Python that has torch and what
cirron-otel needs (`pip install .` there, or `PYTHONPATH` with a directory of `pip install --target`
where the machine has no network). No pytest is needed. Each check runs in a process of its own,
so that one that breaks the device's context breaks no other; all of them take a few minutes. One
that has not ended within 120 s, `compiled` within 200 s, is killed, and has failed.

| check | what it shows |
| --- | --- |
| truth | `gpu_ns` of phases of 5 ms and more is within 5 % of a synchronised measurement |
| no_wait | the host runs ahead of the device as without tracing, and no call of ours waits for it |
| cost | the time of a step with tracing beside without, for small and for large steps: figures |
| capture | a CUDA graph is captured and replayed while a session, and a thread of it, goes on |
| compiled | `torch.compile(mode="reduce-overhead")` trains as it does untraced |
| recompute | what checkpointing computes again, on autograd's thread, hangs under its backward |
| skipped | a step that a fused optimizer left out under GradScaler is marked |
| memory | `cuda_memory`: the peak of a step is torch's own; off, torch's peak is left alone |
| snapshot | statistics of 100 million parameters, in milliseconds; they are those of the CPU |
| values | so are those of tensors of many types and layouts, and nobody waits for them |
| epoch | a snapshot at the end of an epoch, while the device is busy, holds nobody up |
| identical | losses and weights of 200 steps are bit-identical with and without tracing |
| place | the resource detector's model and number of GPUs are torch's |
| phases | `cuda_memory="phase"`: the peak of a phase is torch's own |
| samples | sampled peaks never exceed torch's, no other device is touched, a step takes as long |
| loss_marks | `mark_loss` marks the loss of each step, and the host does not wait for the device |
| trainer | steps of transformers' Trainer have the device's time, and the losses are the same |
| out_of_memory | a caught OOM is a mark and a bundle; a retry has as much memory as without us |
| findings | a slow loader is the first finding; device times, memory and utilisation are read |
| digest_values | tensors of every kind have the digests on the device that they have on the CPU |
| digest_cost | digests of 100 million parameters: at most 8 times a norm of them, under 64 MB |
| digest_streams | tables that a busy stream creates are complete when another stream uses them |
| digest_steps | a training with digests: equal twice, and to one without; nobody waits |
| digest_files | a script gives the recorded digests from the kept tensors |

It prints a line a check, with the traceback and what was written to stderr where one did not pass.
With `--json` the figures, and those texts, are written after each check. `--rehearse` runs the
programs of the checks on the CPU with small sizes: it shows that they run, and measures nothing.

Exit status: 0, all checks passed, or could not be shown for something that the machine lacks, which
the last line names, or the rehearsal ran through; 1, one failed; 2, the command line is wrong; 3,
there is no GPU: nothing was measured; 4, what the checks need cannot be imported; 5, a check could
not be shown, for another reason.
"""
