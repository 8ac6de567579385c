"""The vocabulary: layouts, algorithms, objectives, problems, engines, seeding. torch and the standard library only."""
