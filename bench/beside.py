"""What the programs in this folder share: `RUN` is bench/run as a module, which knows where things are and when it is quiet."""

import importlib.machinery
import importlib.util
import os


def load_run():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
    loader = importlib.machinery.SourceFileLoader("run", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
    loader.exec_module(module)
    return module


RUN = load_run()
