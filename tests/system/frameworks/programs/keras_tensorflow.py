"""Programs that train with Keras on TensorFlow, and with eager TensorFlow."""

from __future__ import annotations

from typing import Any

from tests.system.frameworks import program

from . import keras_shared
from .keras_parts import (
    OPTIONS,
    TENSORFLOW,
    compiled,
    data,
    programs_on,
    results,
)

assert keras_shared
PROGRAMS = programs_on(TENSORFLOW)
EAGER = """
      data_load
      forward
      backward
      optimizer_step"""


def _rows(rows: int = 6) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(data(rows)).batch(2)


def _loss(model: Any, inputs: Any, targets: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean((model(inputs, training=True) - targets) ** 2)


@program(
    """
cirron.session
  epoch[0]
    step[0]
      train_step{compiles=true}
    step[1-2]
      train_step
    eval[0]
      forward{compiles=true}
      forward
  epoch[1]
    step[0-2]
      train_step
    eval[1]
      forward
      forward
"""
)
def reads_a_dataset_of_unknown_length() -> dict[str, Any]:
    """The fetch after the last batch of the first epoch makes no step."""
    model = compiled()
    rows = _rows().filter(lambda *_: True)
    valid = _rows(4).filter(lambda *_: True)
    return results(model, model.fit(rows, epochs=2, validation_data=valid, verbose=0))


@program(
    """
cirron.session
  epoch[0]
    step[0]{batches=2}
      train_step
    step[2]{batches=2}
      train_step
    step[4]{batches=1}
      train_step
"""
)
def executes_two_batches_in_a_step() -> dict[str, Any]:
    """`steps_per_execution=2` with five batches."""
    model = compiled(steps_per_execution=2)
    return results(model, model.fit(*data(10), **OPTIONS))


@program(
    f"cirron.session\n  epoch[0]\n    step[0-2]{EAGER}\n    eval[0]\n      data_load\n      forward"
)
def runs_eagerly() -> dict[str, Any]:
    """`run_eagerly=True` shows the inside of a step."""
    model = compiled(run_eagerly=True)
    return results(model, model.fit(*data(), validation_data=data(2), **OPTIONS))


@program(f"cirron.session\n  epoch[0]\n    step[0-1]{EAGER}")
def reads_a_generator_that_logs() -> dict[str, Any]:
    """The dataset's generator logs and uses a layer; it runs in a thread of TensorFlow."""
    import logging

    import keras
    import tensorflow as tf

    model, scale = compiled(), keras.layers.Rescaling(2.0)
    optimizer = keras.optimizers.SGD(0.1)

    def batches() -> Any:
        for number in range(2):
            logging.getLogger("program").warning("batch %d", number)
            inputs, targets = data(2, number)
            yield scale(inputs).numpy(), targets

    shapes = (tf.TensorSpec((2, 4)), tf.TensorSpec((2, 2)))
    for inputs, targets in tf.data.Dataset.from_generator(batches, output_signature=shapes):
        with tf.GradientTape() as tape:
            loss = _loss(model, inputs, targets)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return results(model)


@program(
    """
cirron.session
  step[0]
    train_step{compiles=true}
  step[1-2]
    train_step
  forward
"""
)
def trains_on_batches() -> dict[str, Any]:
    """`train_on_batch` in a loop, and `test_on_batch` after it."""
    model = compiled()
    logs = []
    for _ in range(3):
        loss, error = model.train_on_batch(*data(2))
        logs += [["loss", float(loss)], ["mae", float(error)]]
    model.test_on_batch(*data(2))
    return {**results(model), "logs": logs}


@program("cirron.session\n  data_load\n  epoch[0]\n    step[0-1]\n      train_step")
def mirrors_on_two_devices() -> dict[str, Any]:
    """A MirroredStrategy over two logical CPUs."""
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = compiled()
    return results(model, model.fit(*data(8), batch_size=4, verbose=0))


@program("cirron.session\n  epoch[0]\n    step[0-1]\n      train_step")
def compiles_with_xla() -> dict[str, Any]:
    """`jit_compile=True`: XLA compiles the train function."""
    model = compiled(jit_compile=True)
    return results(model, model.fit(*data(4), **OPTIONS))


@program(f"cirron.session\n  epoch[0-1]\n    step[0-2]{EAGER}")
def writes_an_eager_loop() -> dict[str, Any]:
    """The loop of TensorFlow's guide, over a dataset."""
    import keras
    import tensorflow as tf

    model = compiled()
    optimizer = keras.optimizers.Adam(0.01)
    for _ in range(2):
        for inputs, targets in _rows():
            with tf.GradientTape() as tape:
                loss = _loss(model, inputs, targets)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return results(model)


@program(
    """
cirron.session
  epoch[0]
    step[0]
      data_load
      train_step{compiles=true}
    step[1-2]
      data_load
      train_step
    eval[0]
      data_load
      forward{compiles=true}
      data_load
      forward
"""
)
def writes_a_loop_of_functions() -> dict[str, Any]:
    """A compiled train step, and a compiled test step after the epoch's batches."""
    import keras
    import tensorflow as tf

    model = compiled()
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def train(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _loss(model, inputs, targets)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def test(inputs: Any, targets: Any) -> Any:
        return _loss(model, inputs, targets)

    valid = _rows(4)
    losses = []
    for number, (inputs, targets) in enumerate(_rows()):
        losses.append(float(train(inputs, targets)))
        if number == 2:
            losses += [float(test(*batch)) for batch in valid]
    return results(model, losses=losses)


@program(
    """
cirron.session
  optimizer_step
  epoch[0]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        backward
      optimizer_step
"""
)
def accumulates_in_an_eager_loop() -> dict[str, Any]:
    """Two batches for each step of the optimizer; it has stepped before the loop."""
    import keras
    import tensorflow as tf

    model = compiled()
    optimizer = keras.optimizers.SGD(0.1)
    weights = model.trainable_variables
    optimizer.apply([tf.zeros_like(each) for each in weights], weights)
    total: list[Any] = []
    for number, (inputs, targets) in enumerate(_rows(8)):
        with tf.GradientTape() as tape:
            loss = _loss(model, inputs, targets)
        gradients = tape.gradient(loss, model.trainable_variables)
        total = [a + b for a, b in zip(total, gradients, strict=True)] if number % 2 else gradients
        if number % 2:
            optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
    return results(model)


@program("""
cirron.session
  eval[0]
    data_load
    forward
    data_load
    forward
  data_load
""")
def evaluates_eagerly_and_peeks() -> dict[str, Any]:
    """A pass without gradients, and a batch that is only fetched."""
    model = compiled()
    found = [model(inputs).numpy().tolist() for inputs, _ in _rows(4)]
    inputs, _ = next(iter(_rows(4)))
    return {"outputs": found, "inputs": inputs.numpy().tolist()}


@program(
    """
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      backward
"""
)
def changes_weights_without_an_optimizer() -> dict[str, Any]:
    """`assign_sub` on variables, and `break` after two batches."""
    import tensorflow as tf

    weight = tf.Variable(tf.ones((4, 2)))
    for number, (inputs, targets) in enumerate(_rows()):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weight - targets) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        if number == 1:
            break
    return {"weight": weight.numpy().tolist()}
