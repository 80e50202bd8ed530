"""What each pipeline rank computes, and in which order: actions, orders of them, and orders laid out in time."""

from simulator.schedule.order.action import PHASES, PLACEHOLDER, PLACEHOLDER_TEXT, Action
from simulator.schedule.order.order import Order

__all__ = ["PHASES", "PLACEHOLDER", "PLACEHOLDER_TEXT", "Action", "Order"]
