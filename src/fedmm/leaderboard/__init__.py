"""All methods on the same problems: their options found by one budgeted search, and what each then sends and computes.

``games``, ``auc`` and ``adaptations`` hold the problems, ``trials`` says what a run is, and ``play`` runs a game.
``search`` chooses options, ``board`` runs what is missing of a results file (``results``), and ``tables`` and
``draw`` show it.
"""
