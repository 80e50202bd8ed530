"""A local page in which a scenario is changed by menus and simulated again after each change, in a warm process."""
