"""Algorithms from files of MSCCL (XML) and MSCCL++ (JSON): read, proved on symbolic chunks, as steps; and written."""
