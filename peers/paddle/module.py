"""A layer that holds the tensors of the work by their names in the file."""

import paddle
from paddle.nn.initializer import Assign


class Module(paddle.nn.Layer):
    def __init__(self, work, weights, statistics):
        super().__init__()
        self.work, self.weights, self.statistics = work, {}, {}
        for name, array in weights.items():
            attribute = paddle.ParamAttr(name=name, initializer=Assign(array))
            self.weights[name] = self.create_parameter(list(array.shape), attr=attribute)
            self.add_parameter(name.replace(".", "_"), self.weights[name])
        for name, array in statistics.items():
            self.statistics[name] = paddle.to_tensor(array)
            self.register_buffer(name.replace(".", "_"), self.statistics[name])
