"""Proves a small neural network with ezkl (PyPI), several times in one process, and verifies each proof.

    python -m venv venv && venv/bin/pip install ezkl==23.0.5 onnx numpy
    venv/bin/python integrations/preload/ezkl/prove.py setup FOLDER 14        # once: model, own SRS, keys; the number is logrows
    venv/bin/python integrations/preload/ezkl/prove.py prove FOLDER 5         # five proofs, then ten idle seconds
    LD_PRELOAD=target/release/libzk_alloc.so venv/bin/python integrations/preload/ezkl/prove.py prove FOLDER 5

The script fetches nothing from the network: it makes the reference string itself, for tests only. It prints a line for each proof: its seconds,
page faults, and MiB resident afterwards. The last line has the peak, and the MiB resident after ten idle seconds.
"""

import json
import resource
import sys
import time
from pathlib import Path

import ezkl
import numpy
import onnx
from onnx import TensorProto, helper


def network(path, widths=(16, 32, 32, 8)):
    """Dense layers with ReLU between them, and fixed weights."""
    random = numpy.random.default_rng(7)
    nodes, weights, last = [], [], "input"
    for layer, (rows, columns) in enumerate(zip(widths, widths[1:])):
        for name, shape in ((f"w{layer}", (rows, columns)), (f"b{layer}", (columns,))):
            values = random.uniform(-0.5, 0.5, shape).astype(numpy.float32)
            weights.append(helper.make_tensor(name, TensorProto.FLOAT, shape, values.flatten().tolist()))
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [f"dense{layer}"]))
        last = f"dense{layer}"
        if layer + 2 < len(widths):
            nodes.append(helper.make_node("Relu", [last], [f"relu{layer}"]))
            last = f"relu{layer}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width])
            for name, width in (("input", widths[0]), (last, widths[-1]))]
    graph = helper.make_graph(nodes, "mlp", [ends[0]], [ends[1]], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return widths[0]


def setup(folder, logrows):
    folder.mkdir(parents=True, exist_ok=True)
    at = lambda name: str(folder / name)
    inputs = network(at("network.onnx"))
    values = numpy.random.default_rng(8).uniform(-1, 1, inputs).tolist()
    Path(at("input.json")).write_text(json.dumps({"input_data": [values]}))
    arguments = ezkl.PyRunArgs()
    arguments.logrows = logrows
    arguments.input_scale = arguments.param_scale = 7
    arguments.lookup_range = (-8192, 8192)
    assert ezkl.gen_settings(at("network.onnx"), at("settings.json"), arguments)
    # ezkl may write another number into the settings. Use the requested one.
    settings = json.loads(Path(at("settings.json")).read_text())
    settings["run_args"]["logrows"] = logrows
    Path(at("settings.json")).write_text(json.dumps(settings))
    assert ezkl.compile_circuit(at("network.onnx"), at("network.compiled"), at("settings.json"))
    ezkl.gen_srs(at("srs"), logrows)
    ezkl.gen_witness(at("input.json"), at("network.compiled"), at("witness.json"))
    assert ezkl.setup(at("network.compiled"), at("verifying.key"), at("proving.key"), at("srs"))
    print("set up", folder, "with 2^%d rows" % logrows)


def status_mib(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) // 1024


def prove(folder, proofs):
    at = lambda name: str(folder / name)
    for number in range(1, proofs + 1):
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        began = time.monotonic()
        ezkl.prove(at("witness.json"), at("network.compiled"), at("proving.key"), at("proof.json"), at("srs"))
        seconds = time.monotonic() - began
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        assert ezkl.verify(at("proof.json"), at("settings.json"), at("verifying.key"), at("srs"))
        print(f"proof {number}: {seconds:.2f} s, {faults} faults, {status_mib('VmRSS')} MiB resident", flush=True)
    peak = status_mib("VmHWM")
    time.sleep(10)
    print(f"peak {peak} MiB, after ten idle seconds {status_mib('VmRSS')} MiB")


if __name__ == "__main__":
    what, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    (setup if what == "setup" else prove)(folder, number)
