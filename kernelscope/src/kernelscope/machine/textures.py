"""Fetches from texture objects, for all running lanes at once."""

import numpy as np
from kernelscope.translate.control_flow import LANE

from ..errors import SimulatorError
from ..texture.objects import texels_of
from .lanes import ChunkLanes
from .memory import scalar, spread
from .reports import Reports


class Textures:
    """The texture unit of a chunk."""

    def __init__(self, lanes: ChunkLanes, reports: Reports):
        self.lanes, self.reports = lanes, reports

    def fetch(self, handle, coordinates: tuple, dtype: np.dtype, instruction) -> tuple:
        """Return the four channels as values of a dtype of 32 bits.

        handle: the texture object; coordinates: of float32 or int32, as many as dimensions.
        """
        count = self.lanes.R[LANE].size
        one = scalar(handle) and all(map(scalar, coordinates))
        places = [spread(each, 1 if one else count) for each in coordinates]
        if scalar(handle):
            found = self.texels(int(handle), len(places), places[0].dtype, instruction)
            words = found.fetch(places)
        else:
            words = np.zeros((4, count), np.uint32)
            for each in np.unique(handle).tolist():
                mine = handle == each
                found = self.texels(each, len(places), places[0].dtype, instruction)
                words[:, mine] = found.fetch([place[mine] for place in places])
        values = words.view(dtype)
        return tuple(channel[0] if one else channel for channel in values)

    def texels(self, handle: int, dimensions: int, kind: np.dtype, instruction):
        """The texels of a handle; SimulatorError where they are not what the kernel reads."""
        found, problem = texels_of(handle), ""
        if found is None:
            problem = f"{handle:#x} is no texture object. Pass a TextureObject that still exists"
        elif found.dimensions != dimensions:
            problem = (
                f"the texture has {found.dimensions} dimensions, and is read with {dimensions}"
            )
        elif found.from_memory and kind.kind == "f":
            problem = "a texture of linear memory is read with tex1Dfetch"
        if not problem:
            return found
        instance = self.reports.block.instance
        where = instance.where(instruction)
        message = f"{self.lanes.kernel.name} at {where}: {problem}"
        raise SimulatorError(message, instance.line(instruction))
