"""The core: layouts, algorithms, objectives, problems, engines and seeding, on torch and the standard library only."""
