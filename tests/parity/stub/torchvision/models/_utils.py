from torch import nn


class IntermediateLayerGetter(nn.ModuleDict):
    def __init__(self, model, return_layers):
        ((self.last, self.name),) = return_layers.items()
        children = {}
        for name, child in model.named_children():
            children[name] = child
            if name == self.last:
                break
        super().__init__(children)

    def forward(self, x):
        for child in self.values():
            x = child(x)
        return {self.name: x}
