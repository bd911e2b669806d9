"""How many retries a deployment may make, so that an outage doesn't double the load. Mutable: `_balance`."""


class RetryBudget:
    """Every request pays in a share of a retry, every retry takes out a whole one.

    Args:
        share: Retries per request over time.
        reserve: Retries that are allowed before any request has paid in; also what may be saved up at most.
    """

    def __init__(self, share: float, reserve: int) -> None:
        self._share = share
        self._reserve = float(reserve)
        self._balance = float(reserve)

    def pay_in(self) -> None:
        """Note a request."""
        self._balance = min(self._reserve, self._balance + self._share)

    def take_out(self) -> bool:
        """Take one retry out; false if there is none."""
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
