"""Programs that train with Keras, for each of its backends."""

from __future__ import annotations

import contextlib
from typing import Any

from .keras_parts import (
    OPTIONS,
    compiled,
    data,
    results,
    shared,
)


@shared(lambda on: on.session(on.epoch(0, 3), on.epoch(1, 3, done=3)))
def fits() -> dict[str, Any]:
    """Two epochs over arrays."""
    model = compiled()
    return results(model, model.fit(*data(), epochs=2, **OPTIONS))


@shared(
    lambda on: on.session(
        on.epoch(0, 3, on.evaluation(0, 2)), on.epoch(1, 3, on.evaluation(1, 2), done=3)
    )
)
def validates_after_each_epoch() -> dict[str, Any]:
    """A validation belongs to its epoch."""
    model = compiled()
    history = model.fit(*data(), epochs=2, validation_data=data(4), **OPTIONS)
    return results(model, history)


@shared(
    lambda on: on.session(
        on.epoch(0, 3), on.epoch(1, 3, on.evaluation(0, 1), done=3), on.epoch(2, 3, done=6)
    )
)
def validates_on_a_part_of_the_data() -> dict[str, Any]:
    """`validation_split`, in every second epoch."""
    model = compiled()
    history = model.fit(*data(8), epochs=3, validation_split=0.25, validation_freq=2, **OPTIONS)
    return results(model, history)


@shared(lambda on: on.session(on.epoch(0, 3), on.evaluation(0, 2), on.evaluation(1, 2, "predict")))
def evaluates_and_predicts_afterwards() -> dict[str, Any]:
    """`evaluate` marks its metrics; `predict` has none."""
    model = compiled()
    history = model.fit(*data(), **OPTIONS)
    inputs, targets = data(4, seed=3)
    loss, error = model.evaluate(inputs, targets, **OPTIONS)
    predicted = model.predict(inputs, **OPTIONS).tolist()
    found = results(model, history, predicted=predicted)
    found["logs"] += [["loss", loss], ["mae", error]]
    return found


@shared(lambda on: on.session(on.epoch(0, 3), on.epoch(1, 3, done=3)))
def stops_early() -> dict[str, Any]:
    """`EarlyStopping` ends the fit after its second epoch of five."""
    import keras

    model = compiled()
    stop = keras.callbacks.EarlyStopping(monitor="loss", mode="max")
    return results(model, model.fit(*data(), epochs=5, callbacks=[stop], **OPTIONS))


@shared(lambda on: on.session(on.epoch(0, 2), on.epoch(1, 2, done=2)))
def schedules_the_learning_rate() -> dict[str, Any]:
    """Two callbacks change the learning rate, and Keras logs it."""
    import keras

    callbacks = keras.callbacks
    model = compiled("adam")
    history = model.fit(
        *data(4), epochs=2, **OPTIONS,
        callbacks=[
            callbacks.LearningRateScheduler(lambda _epoch, rate: rate * 0.5),
            callbacks.ReduceLROnPlateau(monitor="loss", patience=1),
        ],
    )  # fmt: skip
    return results(model, history)


SAVED = "checkpoint{operation=save}"


@shared(
    lambda on: on.session(
        on.epoch(0, 2, SAVED), on.epoch(1, 2, SAVED, done=2), "checkpoint{operation=load}"
    )
)
def saves_and_loads_weights() -> dict[str, Any]:
    """`ModelCheckpoint` after each epoch, and `load_weights` afterwards."""
    import keras

    model = compiled()
    save = keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True)
    history = model.fit(*data(4), epochs=2, callbacks=[save], **OPTIONS)
    model.load_weights("1.weights.h5")
    return results(model, history)


@shared(
    lambda on: on.session(
        on.epoch(0, 2),
        on.evaluation(0, 1),
        on.epoch(1, 2, done=2),
        on.evaluation(1, 1),
        on.epoch(2, 2, done=4),
    )
)
def fits_in_turns() -> dict[str, Any]:
    """A loop over calls of `fit`, each with the next epoch, and `evaluate` between them."""
    model, histories, losses = compiled(), [], []
    for epoch in range(3):
        history = model.fit(*data(4), initial_epoch=epoch, epochs=epoch + 1, **OPTIONS)
        histories.append({name: list(values) for name, values in history.history.items()})
        if epoch < 2:
            losses.append(model.evaluate(*data(2), return_dict=True, **OPTIONS))
    logs = []
    for number, history in enumerate(histories):
        logs += [[name, values[-1]] for name, values in history.items()]
        logs += [[name, value] for name, value in (losses[number : number + 1] or [{}])[0].items()]
    return {**results(model), "logs": logs}


@shared(lambda on: on.session(on.epoch(0, 2)), error="ValueError: a bad batch")
def fails_in_a_batch() -> dict[str, Any]:
    """A callback raises at the end of the second batch."""
    import keras

    class Bad(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, **_: Any) -> None:
            if batch == 1:
                raise ValueError("a bad batch")

    compiled().fit(*data(), callbacks=[Bad()], **OPTIONS)
    return {}


@shared(lambda on: on.session(on.epoch(0, 2)))
def stops_in_the_middle_of_an_epoch() -> dict[str, Any]:
    """A callback sets `stop_training` after the second batch of three."""
    import keras

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, **_: Any) -> None:
            self.model.stop_training = batch == 1

    model = compiled()
    return results(model, model.fit(*data(), epochs=2, callbacks=[Stop()], **OPTIONS))


@shared(
    lambda on: on.session(
        on.epoch(0, 2, on.evaluation(0, 1, "predict")),
        on.epoch(1, 2, on.evaluation(1, 1, "predict"), done=2),
    )
)
def predicts_in_a_callback() -> dict[str, Any]:
    """A callback predicts at the end of each epoch."""
    import keras

    class Predict(keras.callbacks.Callback):
        def on_epoch_end(self, *_: Any) -> None:
            self.model.predict(data(2)[0], verbose=0)

    model = compiled()
    return results(model, model.fit(*data(4), epochs=2, callbacks=[Predict()], **OPTIONS))


@shared(lambda on: on.session(on.epoch(0, 2)))
def weighs_classes_of_a_classifier() -> dict[str, Any]:
    """A classifier with class weights and an unknown number of batches of a PyDataset."""
    import keras
    import numpy as np

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return data(2, index)[0], np.array([0, 1])

    model = compiled()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(Batches(), class_weight={0: 1.0, 1: 3.0}, verbose=0)
    return results(model, history)


@shared(lambda on: on.session(on.epoch(0, 3)))
def accumulates_gradients() -> dict[str, Any]:
    """The optimizer accumulates over two batches; a step is a batch, as Keras counts."""
    import keras

    model = compiled(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    return results(model, model.fit(*data(), **OPTIONS))


@shared(lambda on: on.session(on.epoch(0, 2)))
def trains_in_mixed_precision() -> dict[str, Any]:
    """The policy `mixed_bfloat16`."""
    import keras

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = compiled()
    return results(model, model.fit(*data(4), **OPTIONS))


@shared(lambda on: on.session(on.epoch(0, 2, SAVED), on.loaded()))
def backs_up_and_is_loaded() -> dict[str, Any]:
    """`ModelCheckpoint` saves the model, which `load_model` loads afterwards."""
    import keras

    model = compiled()
    save = keras.callbacks.ModelCheckpoint("model.keras")
    history = model.fit(*data(4), callbacks=[save], **OPTIONS)
    return results(keras.saving.load_model("model.keras"), history)


class _InterruptedError(Exception):
    """Ends a `fit` in the middle."""


@shared(
    lambda on: on.session(
        on.epoch(0, 2, SAVED), on.epoch(1, 1, done=2),
        *on.again, *on.first, "checkpoint{operation=load}",
        on.epoch(1, 2, SAVED, done=2), on.epoch(2, 2, SAVED, done=4),
    )
)  # fmt: skip
def resumes_an_interrupted_fit() -> dict[str, Any]:
    """`BackupAndRestore`: a second `fit` begins with the interrupted epoch, and its global step."""
    import keras

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            if int(self.model.optimizer.iterations) == 3:
                raise _InterruptedError

    model = compiled("adam")
    backup = keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False)
    with contextlib.suppress(_InterruptedError):
        model.fit(*data(4), epochs=3, callbacks=[backup, Interrupt()], **OPTIONS)
    first = {name: list(values) for name, values in model.history.history.items()}
    model = compiled("adam")
    again = keras.callbacks.BackupAndRestore("backup")
    history = model.fit(*data(4), epochs=3, callbacks=[again], **OPTIONS)
    found = results(model, history)
    found["logs"] = [[name, each] for name, values in first.items() for each in values] + found[
        "logs"
    ]
    return found


@shared(lambda on: on.session(on.epoch(0, 2), on.epoch(1, 2, done=2)))
def has_a_train_step_of_its_own() -> dict[str, Any]:
    """The guide's model with a `train_step`, which returns its own metric."""
    import keras

    class Custom(keras.Sequential):  # type: ignore[misc]
        def train_step(self, rows: Any) -> Any:
            inputs, targets = rows
            if keras.backend.backend() == "torch":
                _torch_step(self, inputs, targets)
            else:
                _tensorflow_step(self, inputs, targets)
            return {metric.name: metric.result() for metric in self.metrics}

    model = compiled(kind=Custom)
    return results(model, model.fit(*data(4), epochs=2, **OPTIONS))


def _torch_step(model: Any, inputs: Any, targets: Any) -> None:
    import torch

    model.zero_grad()
    outputs = model(inputs, training=True)
    model.compute_loss(y=targets, y_pred=outputs).backward()
    weights = model.trainable_weights
    with torch.no_grad():
        model.optimizer.apply([each.value.grad for each in weights], weights)
    model.compute_metrics(inputs, targets, outputs)


def _tensorflow_step(model: Any, inputs: Any, targets: Any) -> None:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        outputs = model(inputs, training=True)
        loss = model.compute_loss(y=targets, y_pred=outputs)
    weights = model.trainable_weights
    model.optimizer.apply(tape.gradient(loss, weights), weights)
    model.compute_metrics(inputs, targets, outputs)


@shared(
    lambda on: on.session(
        on.epoch(0, 3, on.evaluation(0, 1)), on.evaluation(1, 1, "predict"), layers=on.functional
    )
)
def has_several_inputs_and_outputs() -> dict[str, Any]:
    """A functional model with two inputs and two outputs, each with a loss of its own."""
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(1)
    inputs = {name: keras.Input((4,), name=name) for name in ("left", "right")}
    both = layers.concatenate([layers.Dense(3)(each) for each in inputs.values()])
    outputs = {name: layers.Dense(2, name=name)(both) for name in ("price", "demand")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"price": "mse", "demand": "mae"}, metrics={"price": ["mae"]})

    def rows(count: int) -> Any:
        left, targets = data(count)
        return {"left": left, "right": -left}, {"price": targets, "demand": targets * 2}

    history = model.fit(*rows(6), validation_data=rows(2), **OPTIONS)
    predicted = model.predict(rows(2)[0], **OPTIONS)
    predicted = {name: values.tolist() for name, values in predicted.items()}
    return results(model, history, predicted=predicted)


@shared(lambda on: on.session(on.epoch(0, 2), on.epoch(1, 2, done=2)))
def scales_the_loss() -> dict[str, Any]:
    """The policy `mixed_float16`, whose optimizer scales the loss and updates the scale."""
    import keras

    keras.mixed_precision.set_global_policy("mixed_float16")
    model = compiled("adam")
    found = results(model, model.fit(*data(4), epochs=2, **OPTIONS))
    return found | {"scale": float(model.optimizer.dynamic_scale)}


@shared(lambda on: on.session(on.epoch(0, 2), on.epoch(1, 2, done=2)))
def reads_a_generator_without_end() -> dict[str, Any]:
    """A Python generator, of which `steps_per_epoch` ends the epochs."""

    def batches() -> Any:
        seed = 0
        while True:
            yield data(2, seed)
            seed += 1

    model = compiled()
    return results(model, model.fit(batches(), steps_per_epoch=2, epochs=2, verbose=0))


@shared(lambda on: on.session(on.epoch(0, 2), on.epoch(1, 2, done=2)))
def adds_metrics_in_a_callback() -> dict[str, Any]:
    """A callback adds scalars of numpy to the logs, and a matrix, which is no mark."""
    import keras
    import numpy as np

    class Adds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs |= {"f1": np.float32(0.1), "right": np.int64(epoch), "is_last": np.bool_(epoch)}
            logs["confusion"] = np.eye(2)

    model = compiled()
    history = model.fit(*data(4), epochs=2, callbacks=[Adds()], **OPTIONS)
    found = results(model)
    columns = {name: np.array(values) for name, values in history.history.items()}
    columns.pop("confusion")
    return found | {"logs": [[name, each] for name in columns for each in columns[name].tolist()]}


@shared(lambda on: on.session(on.epoch(0, 2), *on.first, on.epoch(0, 2)))
def fine_tunes_a_part() -> dict[str, Any]:
    """Transfer learning: the model is compiled again with other layers frozen, and fits again."""
    model = compiled("adam")
    model.layers[0].trainable = False
    first = model.fit(*data(4), **OPTIONS)
    history = [[name, value] for name, values in first.history.items() for value in values]
    model.layers[0].trainable = True
    model.compile("sgd", "mse", metrics=["mae"])
    found = results(model, model.fit(*data(4), **OPTIONS))
    return found | {"logs": history + found["logs"]}
