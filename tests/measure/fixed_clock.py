"""A clock for suites that run on the simulator."""


class FixedClock:
    """Runs a launch, and says that it took 5 us."""

    def synchronize(self):
        pass

    def time_us(self, launch):
        launch()
        return 5.0
