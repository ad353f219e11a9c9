"""CUDA programs on a real GPU, beside torch and CuPy. Needs no network; `make test-gpu` runs it."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_fakes import KEY, Golden, golden_names, read_golden, with_variants

import pteron
from pteron import ExecuTorchResult, errors

torch = pytest.importorskip("torch")
cupy = pytest.importorskip("cupy")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from_host = ExecuTorchResult.from_host
SLOW = 4_000_000  # cycles of a kernel that only waits, about 2 ms
ROUNDS = 500
TWO_GPUS = ("add1", "sums")
# What cannot be a CUDA graph, and why.
REFUSED = {
    "inplace_in": "aten::copy_ runs on the host",
    "rand": "the model needs the host in the middle of its run",
} | dict.fromkeys(
    ["mlp_dyn", "mlp_dyn_devio", "muladd_dyn", "rows_dyn"], "input 0 has a dynamic shape"
)
NAMES = sorted(name for name in golden_names() if not name.startswith(TWO_GPUS))


def inputs_of(program: Golden, method: pteron.Method, kind: str) -> list[Any]:
    """Inputs, made anew: those on the device by way of NumPy, CuPy or torch."""
    made = []
    for x, info in zip(program.inputs, method.metadata.inputs, strict=True):
        if isinstance(x, ExecuTorchResult):
            made.append(x)
        elif info.device() == "cpu":
            made.append(x.copy())
        elif kind == "numpy":
            made.append(from_host(x, info.device()))
        else:
            made.append(cupy.asarray(x) if kind == "cupy" else torch.from_numpy(x).cuda())
    return made


def results(outputs: list[Any]) -> list[Any]:
    """Outputs as results; those that are torch tensors by way of the host."""
    return [from_host(x.cpu()) if isinstance(x, torch.Tensor) else x for x in outputs]


@pytest.mark.parametrize("kind", ["numpy", "cupy", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_goldens(folder: Path, name: str, kind: str) -> None:
    """Every program gives what torch gave, without and with a stream."""
    program = read_golden(folder / name)
    stream = torch.cuda.Stream()
    for options in ({}, {"stream": stream}, {"stream": 0}, {"clone_outputs": False}):
        method = program.load().load_method("forward")
        for step in range(len(program.steps)):
            outputs = method.execute(inputs_of(program, method, kind), **options)
            if name == "rand":
                values = results(outputs)[0].to_host().numpy()
                (_, want) = program.steps[0][0]
                low, high = float(np.min(program.inputs[0])), float(np.max(program.inputs[0]) + 1)
                assert values.shape == want.shape and low <= values.min() <= values.max() <= high
                continue
            if name == "inplace_in":  # its first output is the updated input
                outputs = outputs[1:]
            program.check(results(outputs), step)
        if len(program.steps) == 1 and name not in ("rand", "inplace_in"):
            for _ in range(3):
                program.check(results(method.execute(inputs_of(program, method, kind), **options)))


@pytest.mark.parametrize("kind", ["numpy", "cupy", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_goldens_as_graphs(folder: Path, name: str, kind: str) -> None:
    """The same as CUDA graphs, with other memory each time; or a refusal, with its reason."""
    program = read_golden(folder / name)
    loaded = program.load()
    words = REFUSED.get(name)
    if words:
        with pytest.raises(errors.ArgumentError, match=words):
            loaded.load_method("forward", cuda_graph=True)
        return
    stream = torch.cuda.Stream()
    for options in ({}, {"stream": stream}, {"stream": 0}, {"clone_outputs": False}):
        method = loaded.load_method("forward", cuda_graph=True)
        kept = []
        for step in range(len(program.steps)):
            for _ in range(1 if len(program.steps) > 1 else 5):
                kept.append(inputs_of(program, method, kind))
                outputs = method.execute(kept[-1], **options)
                program.check(results(outputs), step)
                kept.append(outputs)


def test_graphs_use_memory_of_every_kind(folder: Path) -> None:
    """torch's, CuPy's, ours, in turn, and addresses that are less aligned than models count on."""
    method = read_golden(folder / "add_devio").load().load_method(cuda_graph=True)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    longer = torch.arange(64, dtype=torch.float32, device="cuda")
    for round in range(20):
        a = from_host(x + round, "cuda:0")
        b = torch.from_numpy(x).cuda() * round
        c = cupy.asarray(x) + round
        d = longer[round + 1 : round + 7].reshape(2, 3)
        for one, other, want in (
            (a, b, x + round + x * round),
            (c, a, 2 * (x + round)),
            (b, d, x * round + x + round + 1),
            (d, d, 2 * (x + round + 1)),
        ):
            (out,) = results(method.execute([one, other]))
            np.testing.assert_array_equal(out.to_host().numpy(), want)


def test_second_method(folder: Path) -> None:
    """Both methods of a program, which share weights on the device."""
    program = read_golden(folder / "two_methods")
    loaded = program.load()
    forward, again = loaded.load_method("forward"), loaded.load_method("again")
    for _ in range(3):
        program.check(forward.execute(program.inputs))
        assert again.execute(program.inputs)[0].shape == (2, 16)


def test_choice_of_library(folder: Path) -> None:
    """Of several libraries in a program the one for this GPU runs, else there is an error."""
    program = read_golden(folder / "mlp_devio")
    major, minor = torch.cuda.get_device_capability()
    here = 10 * major + minor
    chosen = with_variants(program.data, [(here + 10, 0, 0, "newer"), (here, 0, 0, KEY)])
    method = program.load(chosen).load_method()
    program.check(method.execute(program.place(method)))
    foreign = with_variants(program.data, [(here + 10, here + 10, 0, KEY)])
    with pytest.raises(errors.ExecuTorchError, match=rf"no code for this GPU \(sm_{here}\)"):
        program.load(foreign).load_method()


def test_dynamic_shapes(folder: Path) -> None:
    """Every batch that the bounds allow."""
    method = read_golden(folder / "muladd_dyn").load().load_method()
    random = np.random.default_rng(0)
    for batch in (8, 1, 3, 8, 2):
        x, y = random.random((2, batch, 8), np.float32)
        product, total = method.execute([x, y])
        np.testing.assert_allclose(product, x * y + x, rtol=1e-5)
        np.testing.assert_allclose(total, x.sum(1), rtol=1e-5)


def test_results_are_shared(folder: Path) -> None:
    """Inputs and outputs stay where they are, between pteron, CuPy and torch."""
    program = read_golden(folder / "add_devio")
    method = program.load().load_method()
    for kind in ("numpy", "cupy"):
        (out,) = method.execute(inputs_of(program, method, kind))
        assert method.copied == (False, False)
        address = out.__cuda_array_interface__["data"][0]
        assert torch.from_dlpack(out).data_ptr() == address
        assert cupy.from_dlpack(out).data.ptr == address
        assert cupy.asarray(out).data.ptr == address
        assert torch.as_tensor(out, device="cuda").data_ptr() == address
        assert out.torch().data_ptr() == address
    inputs = inputs_of(program, method, "torch")
    (tensor,) = method.execute(inputs)
    assert isinstance(tensor, torch.Tensor) and tensor.is_cuda
    assert method.copied == (False, False)
    torch.testing.assert_close(tensor, inputs[0] + inputs[1])
    (host,) = results([tensor])
    program.check([host])


def test_host_inputs_for_the_device(folder: Path) -> None:
    """M1, M4: NumPy and torch CPU tensors are refused with the same words."""
    method = read_golden(folder / "add_devio").load().load_method()
    x = torch.ones(2, 3, device="cuda")
    texts = []
    for host in (np.ones((2, 3), np.float32), torch.ones(2, 3)):
        with pytest.raises(
            errors.DeviceError, match="is on device cpu, expected on device cuda:0"
        ) as e:
            method.execute([x, host])
        texts.append(str(e.value))
    assert texts[0] == texts[1]
    with pytest.raises(errors.DeviceError, match="is on device cuda:0, expected on device cpu"):
        read_golden(folder / "add").load().load_method().execute([x, x])


@pytest.mark.filterwarnings("ignore:ExternalStream is deprecated")
@pytest.mark.parametrize("producer", ["default", "side"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("graph", [False, True], ids=["plain", "graph"])
def test_order_in_default_mode(folder: Path, producer: str, library: str, graph: bool) -> None:
    """M21: inputs still being written by slow kernels on any stream; results ready at once."""
    method = read_golden(folder / "add_big_devio").load().load_method(cuda_graph=graph)
    stream = torch.cuda.Stream() if producer == "side" else torch.cuda.default_stream()
    reader = torch.cuda.Stream()
    x, y = torch.zeros(2, 1024, 1024, device="cuda")
    a, b = cupy.from_dlpack(x), cupy.from_dlpack(y)
    torch.cuda.synchronize()
    wrong = 0
    for round in range(ROUNDS):
        with torch.cuda.stream(stream), cupy.cuda.ExternalStream(stream.cuda_stream):
            torch.cuda._sleep(SLOW)
            if library == "torch":
                x.fill_(round)
                y.fill_(2 * round)
            else:
                a.fill(round)
                b.fill(2 * round)
        (out,) = method.execute([x, y] if library == "torch" else [a, b])
        with torch.cuda.stream(reader):
            tensor = out if library == "torch" else torch.from_dlpack(out)
            wrong += int((tensor != 3 * round).sum())
    assert wrong == 0


@pytest.mark.filterwarnings("ignore:ExternalStream is deprecated")
@pytest.mark.parametrize("producer", ["default", "side", "same"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("graph", [False, True], ids=["plain", "graph"])
def test_order_on_a_stream(folder: Path, producer: str, library: str, graph: bool) -> None:
    """Inputs from one stream, the run on another, results on a third; nothing waits on the host."""
    method = read_golden(folder / "add_big_devio").load().load_method(cuda_graph=graph)
    run, reader = torch.cuda.Stream(), torch.cuda.Stream()
    writer = {"default": torch.cuda.default_stream(), "side": torch.cuda.Stream(), "same": run}[
        producer
    ]
    x, y = torch.zeros(2, 1024, 1024, device="cuda")
    a, b = cupy.from_dlpack(x), cupy.from_dlpack(y)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for round in range(ROUNDS):
        with torch.cuda.stream(writer), cupy.cuda.ExternalStream(writer.cuda_stream):
            torch.cuda._sleep(SLOW)
            if library == "torch":
                x.fill_(round)
                y.fill_(2 * round)
                (out,) = method.execute([x, y], stream=run)
                x.fill_(-1)  # ordered behind the run
            else:
                a.fill(round)
                b.fill(2 * round)
                (out,) = method.execute([a, b], stream=run)
        with torch.cuda.stream(reader):
            # A torch tensor is ready on the stream that was current when it was made.
            reader.wait_stream(writer)
            tensor = out if library == "torch" else torch.from_dlpack(out)
            wrong += (tensor != 3 * round).sum()
        if library == "cupy":
            reader.synchronize()  # CuPy does not know of the run: its memory is the caller's care
    torch.cuda.synchronize()
    assert int(wrong) == 0


def test_temporaries_on_a_stream(folder: Path) -> None:
    """Device memory that is let go while a run on another stream still reads it."""
    method = read_golden(folder / "add_big_devio").load().load_method()
    run, other = torch.cuda.Stream(), torch.cuda.Stream()
    ones = np.ones((1024, 1024), np.float32)
    outputs = []
    for round in range(ROUNDS):
        with torch.cuda.stream(run):
            torch.cuda._sleep(SLOW)
        (first,) = method.execute(
            [from_host(ones, "cuda:0"), from_host(round * ones, "cuda:0")], stream=run
        )
        from_host(99 * ones, "cuda:0")
        (second,) = method.execute([first, first], stream=other)
        del first
        outputs.append((round, second))
        if len(outputs) == 8:
            for value, out in outputs:
                np.testing.assert_array_equal(out.to_host(), 2 * (value + ones))
            outputs.clear()


def test_no_host_wait_on_a_stream(folder: Path) -> None:
    """A run on a stream returns while the work is still to be done."""
    method = read_golden(folder / "add_big_devio").load().load_method()
    stream = torch.cuda.Stream()
    x = torch.ones(1024, 1024, device="cuda")
    method.execute([x, x], stream=stream)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50 * SLOW)
    method.execute([x, x], stream=stream)
    assert not stream.query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["add_devio", "mlp_fp32", "muladd_noout", "state"])
def test_memory_comes_back(folder: Path, name: str) -> None:
    """200 loads, runs and unloads leave free memory as it was."""
    program = read_golden(folder / name)

    def once() -> None:
        method = program.load().load_method()
        method.execute(program.place(method))

    for _ in range(20):
        once()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(200):
        once()
    gc.collect()
    torch.cuda.synchronize()
    after = torch.cuda.mem_get_info()[0]
    print(f"{name}: {(before - after) / 200 / 1024:.1f} KiB a load")
    assert before - after <= 200 * 16 * 1024, before - after


def test_threads(folder: Path) -> None:
    """Eight threads with four programs each, with and without streams of their own."""
    programs = [read_golden(folder / name) for name in ("add_devio", "mlp_fp32", "conv", "views")]
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            methods = [(p, p.load().load_method()) for p in programs]
            stream = torch.cuda.Stream()
            for i in range(first, first + 200):
                program, method = methods[i % 4]
                program.check(method.execute(program.place(method)))
                program.check(method.execute(program.place(method), stream=stream))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
