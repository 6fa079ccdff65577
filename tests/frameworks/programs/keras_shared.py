"""Programs that train with Keras, for each of its backends."""

from __future__ import annotations

from typing import Any

from .keras_parts import OPTIONS, compiled, data, results, shared


@shared(lambda on: on.session(on.epoch(0, 3), on.epoch(1, 3)))
def fits() -> dict[str, Any]:
    """Two epochs over arrays."""
    model = compiled()
    return results(model, model.fit(*data(), epochs=2, **OPTIONS))


@shared(
    lambda on: on.session(on.epoch(0, 3, on.evaluation(0, 2)), on.epoch(1, 3, on.evaluation(1, 2)))
)
def validates_after_each_epoch() -> dict[str, Any]:
    """A validation belongs to its epoch."""
    model = compiled()
    history = model.fit(*data(), epochs=2, validation_data=data(4), **OPTIONS)
    return results(model, history)


@shared(lambda on: on.session(on.epoch(0, 3), on.epoch(1, 3, on.evaluation(0, 1)), on.epoch(2, 3)))
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


@shared(lambda on: on.session(on.epoch(0, 3), on.epoch(1, 3)))
def stops_early() -> dict[str, Any]:
    """`EarlyStopping` ends the fit after its second epoch of five."""
    import keras

    model = compiled()
    stop = keras.callbacks.EarlyStopping(monitor="loss", mode="max")
    return results(model, model.fit(*data(), epochs=5, callbacks=[stop], **OPTIONS))


@shared(lambda on: on.session(on.epoch(0, 2), on.epoch(1, 2)))
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
        on.epoch(0, 2, SAVED), on.epoch(1, 2, SAVED), "checkpoint{operation=load}"
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
        on.epoch(0, 2), on.evaluation(0, 1), on.epoch(1, 2), on.evaluation(1, 1), on.epoch(2, 2)
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
        on.epoch(1, 2, on.evaluation(1, 1, "predict")),
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
