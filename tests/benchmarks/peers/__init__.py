"""Speed and memory of attnreg's variants beside other libraries: ``make peers``.

``targets.py`` says what is to be reached, ``adapters.py`` calls the attention core of each peer and
``ours.py`` ours with the same mathematics, ``measuring.py`` and ``memory.py`` measure, ``table.py``
goes through the targets, ``claims.py`` through what is claimed of attnreg alone, ``report.py``
judges and writes.
"""
