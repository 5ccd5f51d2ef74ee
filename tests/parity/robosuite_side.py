"""What the packages' sides of the parity tests change in robosuite; it runs in their venvs."""


def keep_physics_of_renderers():
    """Let a new renderer leave the physics as they are.

    robosuite's computes them once more, and the constraint solver then starts from another
    solution: with a renderer, joints differ by 1e-14 from those without one.
    """
    from robosuite.utils.binding_utils import MjRenderContext

    make = MjRenderContext.__init__

    def init(self, sim, *args, **how):
        sim.forward = lambda: None
        make(self, sim, *args, **how)
        del sim.forward

    MjRenderContext.__init__ = init
