"""What each pipeline rank computes, and in which order: actions, orders of them, and orders laid out in time."""

from simulator.order.action import BLANK, BLANK_PRINTED, PHASES, Action
from simulator.order.order import Order

__all__ = ["BLANK", "BLANK_PRINTED", "PHASES", "Action", "Order"]
