"""PPO in one file, in CleanRL's manner: torch and Gymnasium alone. About a minute and a half on two cores.

Sixteen episodes of OnlineTuning-v1 step in one compiled call; an observation is one vector (`flat=True`), an action a
level for each parameter of the base policy, OOCO. Decisions come at uneven times, so that rewards are discounted by the
simulated seconds between them.
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import ooco_gym  # registers the environments

ID, ENVS, STEPS, EPOCHS, BATCHES = "ooco_gym/OnlineTuning-v1", 16, 32, 4, 4
GAMMA_PER_S, LAMBDA_PER_S, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.001


class Agent(nn.Module):
    """A value, and logits of each level of each parameter."""

    def __init__(self, size, levels):
        super().__init__()
        self.levels = tuple(int(one) for one in levels)
        self.critic = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
                                   nn.Linear(64, sum(self.levels)))
        nn.init.orthogonal_(self.actor[-1].weight, 0.01)

    def forward(self, observation, action=None):
        parts = [Categorical(logits=one) for one in torch.split(self.actor(observation), self.levels, dim=-1)]
        if action is None:
            action = torch.stack([one.sample() for one in parts], -1)
        logprob = sum(one.log_prob(part) for one, part in zip(parts, action.unbind(-1), strict=True))
        return action, logprob, sum(one.entropy() for one in parts), self.critic(observation).squeeze(-1)

    def act(self, observation):
        """The likeliest levels of one observation."""
        with torch.no_grad():
            logits = self.actor(torch.as_tensor(observation).float())
        return np.array([int(one.argmax()) for one in torch.split(logits, self.levels, dim=-1)])


@torch.no_grad()
def rollout(envs, agent, observation, over):
    """Plays STEPS decisions: eight tensors (STEPS, ENVS, …), the next observations, and which episodes ended."""
    rows = []
    for _ in range(STEPS):
        action, logprob, _, value = agent(observation)
        following, reward, terminated, truncated, infos = envs.step(action.numpy())
        elapsed, beyond = torch.as_tensor(infos["elapsed_s"]).float(), torch.zeros(ENVS)
        for i in np.flatnonzero(terminated | truncated):  # `following` and `elapsed_s` are of the next episode here
            elapsed[i] = infos["final_info"]["elapsed_s"][i]
            if truncated[i]:  # cut while the load goes on: what would follow has the value of the last observation
                beyond[i] = agent(torch.as_tensor(infos["final_obs"][i])[None])[3].item()
        rows.append((observation, action, logprob, value, torch.as_tensor(reward).float(), over, elapsed, beyond))
        observation, over = torch.as_tensor(following), torch.as_tensor(terminated | truncated).float()
    return [torch.stack(column) for column in zip(*rows, strict=True)], observation, over


def advantages_of(rewards, values, overs, elapsed, beyond, next_value, over):
    """Generalised advantages with γ^Δt and λ^Δt, (STEPS, ENVS); they do not reach across an episode's end."""
    advantages, last = torch.zeros_like(rewards), 0.0
    for t in reversed(range(STEPS)):
        going = 1.0 - (over if t == STEPS - 1 else overs[t + 1])
        after = next_value if t == STEPS - 1 else values[t + 1]
        gamma, lam = GAMMA_PER_S ** elapsed[t], LAMBDA_PER_S ** elapsed[t]
        delta = rewards[t] + gamma * (after * going + beyond[t]) - values[t]
        advantages[t] = last = delta + gamma * lam * going * last
    return advantages


def main(decisions=40_000, seed=1, episodes=12):
    """Learns, and plays held-out windows beside chance and heuristics."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    envs = gym.make_vec(ID, num_envs=ENVS, vectorization_mode="vector_entry_point", autoreset_mode="SameStep",
                        flat=True, window_s=300.0, train_seeds=range(1000, 1016))
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.nvec)
    optimiser = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
    observation, scale = torch.as_tensor(envs.reset(seed=seed)[0]), 1.0
    over = torch.zeros(ENVS)
    for update in range(max(1, decisions // (ENVS * STEPS))):
        columns, observation, over = rollout(envs, agent, observation, over)
        observations, actions, logprobs, values, rewards, overs, elapsed, beyond = columns
        scale = 0.95 * scale + 0.05 * float(rewards.std() + 1e-6)
        with torch.no_grad():
            next_value = agent(observation)[3]
        advantages = advantages_of(rewards / scale, values, overs, elapsed, beyond, next_value, over)
        flat = [one.flatten(0, 1) for one in (observations, actions, logprobs, advantages, advantages + values)]
        for _ in range(EPOCHS):
            for index in torch.randperm(ENVS * STEPS).chunk(BATCHES):
                seen, taken, before, gain, target = (one[index] for one in flat)
                _, logprob, entropy, value = agent(seen, taken)
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                ratio = (logprob - before).exp()
                loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                loss = loss + 0.5 * (value - target).pow(2).mean() - ENTROPY * entropy.mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimiser.step()
        if update % 10 == 0:
            print(f"{(update + 1) * ENVS * STEPS:,} decisions: reward {float(rewards.mean()):.3f} each")
    envs.close()
    env = gym.make(ID, flat=True, window_s=300.0)
    return ooco_gym.evaluate(agent.act, env, beside=["random actions", "ooco", "slack"], episodes=episodes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for key, value in (("decisions", 40_000), ("seed", 1), ("episodes", 12)):
        parser.add_argument(f"--{key}", type=int, default=value)
    main(**vars(parser.parse_args()))
