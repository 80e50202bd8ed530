"""Pipeline orders: the actions of each pipeline rank in order, and the time slots that follow from them."""

from simulator.schedule.order.action import PHASES, PLACEHOLDER, PLACEHOLDER_TEXT, Action
from simulator.schedule.order.order import Order

__all__ = ["PHASES", "PLACEHOLDER", "PLACEHOLDER_TEXT", "Action", "Order"]
