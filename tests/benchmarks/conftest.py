"""What a saved run says about itself, so that two of them are compared knowingly."""

from __future__ import annotations

import pytest
import torch

import attnreg


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config, machine_info):
    machine_info["attnreg"] = attnreg.__version__
    machine_info["torch"] = torch.__version__
    machine_info["threads"] = torch.get_num_threads()
