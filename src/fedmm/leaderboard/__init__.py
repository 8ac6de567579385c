"""The leaderboard: all methods on the same problems, tuned by one search budget, and what each sends and computes.

``games``, ``auc`` and ``adaptations`` define the problems, ``trials`` defines a run, and ``play`` runs a game.
``search`` chooses options, ``board`` runs what a results file (``results``) lacks; ``tables`` and ``draw`` show it.
"""
