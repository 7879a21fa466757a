"""The stepper in a notebook: the one view of a trace that needs Jupyter's packages."""

import anywidget
import traitlets

from .stepper import SCRIPT, STYLE, StaticStepper, opening, pack, table, text


class Stepper(anywidget.AnyWidget):
    """The widget. `trace` holds all frames, packed.

    step, recording: the step and the number of the recording that are shown; both can be set.
    """

    _esm = SCRIPT
    _css = STYLE
    trace = traitlets.Unicode().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    recording = traitlets.Int(0).tag(sync=True)

    def __init__(self, tracer, step: int | None = None):
        self.tracer, recordings = tracer, tracer.recordings
        super().__init__(trace=pack(recordings), **opening(recordings, step))

    @traitlets.validate("recording")
    def _is_recorded(self, proposal) -> int:
        """Refuse the number of a recording that there is not.

        Raises:
            TraitError: the number is below 0 or too large.
        """
        number, count = proposal["value"], len(self.tracer.recordings)
        if not 0 <= number < max(count, 1):
            raise traitlets.TraitError(
                f"recording {number} does not exist: the blocks recorded are 0 to {count - 1}"
            )
        return number

    def _repr_mimebundle_(self, **options):
        """The widget, and beside it the table for pages that cannot show widgets."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data["text/html"] = table(self.tracer.recordings)
        data["text/plain"] = text(self.tracer.recordings)
        return data, metadata


def show(tracer, step: int | None = None, static: bool = False) -> Stepper | StaticStepper:
    """Return the stepper of a tracer for a notebook, opened at `step`.

    Without `step` it opens at the first finding, else at the beginning.

    static=True gives plain HTML with its script inside, which works in every export of the
    notebook; the widget, which needs JupyterLab's widget support, keeps `step` and `recording` in
    sync with Python.
    """
    return StaticStepper(tracer, step) if static else Stepper(tracer, step)
