"""adverb: a software RDMA NIC, its simulator and its lab, from Python.

`adverb.simulate` and `adverb.sweep` run scenarios, `adverb.lab.run` published experiments, all to Arrow tables;
`python -m adverb run -- COMMAND` runs an unmodified RDMA program. Simulations need pyarrow (`pip install
adverb[arrow]`), the command needs nothing.
"""

from . import lab
from ._command import Failed, command, library, version
from ._htsim import from_htsim
from ._ns3 import from_ns3
from ._simulate import Simulation, simulate
from ._sweep import sweep
from ._tables import digest
from ._toml import document

__all__ = [
    "Failed", "Simulation", "command", "digest", "document", "from_htsim", "from_ns3", "lab", "library", "simulate",
    "sweep", "version",
]
__version__ = version()
