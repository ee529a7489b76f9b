"""One rank of a run: ``torchrun --nproc-per-node N -m tests.wmrl_agents.several_ranks KIND FOLDER``.

- ``run`` trains a tabular policy in FOLDER/run;
- ``gradient`` leaves in FOLDER/gradient.pt what the language model in FOLDER/model samples, and its gradient;
- ``failure`` fails on rank 0 after some steps, and FOLDER/ended-RANK says that the others ended in order.
"""

import sys
from pathlib import Path

import torch

from tests.stubs import TabularPolicy
from tests.wmrl_agents.killed_run import CONFIG, parts
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.learners import Learners, follow
from wmrl_agents.grpo.ranks import Ranks
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.policies.language_model import LanguageModelPolicy

RUN = CONFIG.replace(
    steps=4, generation_batch=3, micro_batch=3, updates_per_batch=2, checkpoint_every=1, max_grad_norm=1.0
)
GRADIENT = GRPOConfig(micro_batch=2, kl_coefficient=0.1, entropy_coefficient=0.05)


def language_model(source):
    return LanguageModelPolicy(source, max_new_tokens=12, device="cpu")


def gradient(ranks, folder):
    """Sample, sum up, step, sample again; everything that could differ between numbers of ranks."""
    policy = language_model(folder / "model")
    reference = policy.frozen_copy()
    learners = Learners(GRADIENT, policy, reference, ranks)
    ranks.tell(("begin", GRADIENT.replace(policy=str(folder / "model"))))
    with torch.no_grad():  # as after a resume: rank 0 has other weights than those that all have loaded
        for parameter in policy.parameters():
            parameter.mul_(1.01)
    learners.share_weights()
    prompts = [policy.begin("", f"task {number}") for number in range(7)]
    batches = [(prompts[:3], 5), (prompts[3:6], 6), (prompts[6:], 7)]
    samples = [sample for batch in learners.sample(batches) for sample in batch]
    statistics = learners.accumulate(samples, torch.linspace(-1, 1, 7).tolist())
    grads = [parameter.grad.clone() for parameter in policy.parameters()]
    torch.optim.SGD(policy.parameters(), lr=1e-2).step()
    learners.share_weights()
    again = [sample for batch in learners.sample(batches) for sample in batch]
    torch.save(
        {
            "tokens": [sample.token_ids for sample in samples],
            "tokens after": [sample.token_ids for sample in again],
            "log-probabilities after": [sample.log_probs for sample in again],
            "gradient": grads,
            "statistics": vars(statistics),
        },
        folder / "gradient.pt",
    )


def train(ranks, folder, fails=False):
    trainer = GRPOTrainer(RUN, folder / "run", parts(), ranks)
    trainer.train(should_stop=lambda: fails and 1 / (trainer.next_step - 2) is None)
    trainer.close()


def main(kind, folder):
    load = language_model if kind == "gradient" else TabularPolicy.load
    with Ranks.join() as ranks:
        if not ranks.leads:
            follow(ranks, load)
            (folder / f"ended-{ranks.rank}").touch()
        elif kind == "gradient":
            gradient(ranks, folder)
        else:
            train(ranks, folder, fails=kind == "failure")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
