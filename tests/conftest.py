"""What every test starts from: no network, one thread a job, and reproducible examples."""

import os

# Before numpy and torch are imported: with two threads on two busy cores small models run far slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"

from hypothesis import settings

settings.register_profile("wmrl", deadline=None, derandomize=True)
settings.load_profile("wmrl")
