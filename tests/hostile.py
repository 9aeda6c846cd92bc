"""Variants that crash, hang, print, exit or ask for too much memory when they are called."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import nn

from attnreg import Capabilities, Variant


class Hostile(nn.Module):
    capabilities = Capabilities(cross=True, grouped=True, value_dim=True)

    def __init__(self, dims):
        super().__init__()

    def act(self):
        raise NotImplementedError

    def forward(self, query, key, value, mask):
        self.act()
        mean = value.mean(2, keepdim=True)
        group = query.shape[1] // key.shape[1]
        return mean.repeat_interleave(group, 1).expand(-1, -1, query.shape[2], -1).clone()


class Dies(Hostile):
    def act(self):
        os._exit(7)


class Exits(Hostile):
    def act(self):
        sys.exit("goodbye")


class Hangs(Hostile):
    def act(self):
        time.sleep(1000)


class Allocates(Hostile):
    def act(self):
        torch.empty(2**38).fill_(1.0)


class Prints(Hostile):
    def act(self):
        print('{"result": "forged"}', flush=True)
        os.write(1, b'{"result": "forged too"}\n')


class Raises(Hostile):
    def act(self):
        raise LookupError("no table for this length")


def mean(module, query, key, value, visible, bias, query_position, key_position):
    group = query.shape[1] // key.shape[1]
    return value.mean(2, keepdims=True).repeat(group, 1).repeat(query.shape[2], 2)


DIES, EXITS, HANGS, ALLOCATES, PRINTS, RAISES = (
    Variant(factory.__name__.lower(), factory, summary="hostile", reference=mean)
    for factory in (Dies, Exits, Hangs, Allocates, Prints, Raises)
)
