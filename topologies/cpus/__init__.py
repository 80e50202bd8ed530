"""Host processors, one file for each kind of socket."""
