"""The search for a plan: planner, ranking, reasons and advice; and what the step time is sensitive to."""
