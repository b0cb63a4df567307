"""A layer that holds the tensors of the work by their names in the file."""

import oneflow as flow


class Module(flow.nn.Module):
    def __init__(self, work, weights, statistics):
        super().__init__()
        self.work, self.weights, self.statistics = work, {}, {}
        for name, array in weights.items():
            self.weights[name] = flow.nn.Parameter(flow.tensor(array))
            self.register_parameter(name.replace(".", "_"), self.weights[name])
        for name, array in statistics.items():
            self.register_buffer(name.replace(".", "_"), flow.tensor(array))

    def tensor(self, name):
        """As the graph knows it, while one is built."""
        return getattr(self, name.replace(".", "_"))
