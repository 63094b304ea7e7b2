"""NVIDIA's compiler takes every kernel with every option set for every machine, and each fits. No GPU is used."""

import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
sys.path.insert(0, str(KERNELS))

import nvrtc  # noqa: E402

needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason=nvrtc.missing() or "")


def test_blocks_per_sm_follow_the_limit_that_is_met_first():
    h100 = nvrtc.MACHINES["sm_90"]
    assert nvrtc.blocks_per_sm(h100, 128, 32, 0) == 16  # threads: 2048 / 128, registers for as many
    assert nvrtc.blocks_per_sm(h100, 32, 16, 0) == 32  # blocks
    assert nvrtc.blocks_per_sm(h100, 128, 168, 0) == 3  # registers: 3 warps for each of 4 schedulers
    assert nvrtc.blocks_per_sm(h100, 128, 169, 0) == 2
    assert nvrtc.blocks_per_sm(h100, 128, 32, 113 << 10) == 2  # shared memory: 228 KiB, 1 KiB reserved per block
    assert nvrtc.blocks_per_sm(h100, 128, 32, (113 << 10) + 4) == 1


@pytest.mark.parametrize("arch, limit", [("sm_75", 65536), ("sm_80", 166912), ("sm_90", 232448), ("sm_100", 232448)])
def test_the_last_block_that_fits_has_exactly_the_shared_memory_of_the_machine(arch, limit):
    assert nvrtc.blocks_per_sm(nvrtc.MACHINES[arch], 128, 32, limit) == 1
    assert nvrtc.blocks_per_sm(nvrtc.MACHINES[arch], 128, 32, limit + 4) == 0


@pytest.fixture(scope="module")
def report():
    return nvrtc.report()


@needs_nvrtc
def test_every_kernel_option_set_and_machine_compiles(report):
    names = {"naive_scores", "naive_softmax", "naive_output", "flash_forward", "flash_decode_split"}
    assert {row.kernel for row in report} == names | {"flash_decode_combine"}
    assert {row.arch for row in report} == set(nvrtc.architectures()) >= {"sm_75", "sm_80", "sm_90"}
    for source in nvrtc.SOURCES:
        of_source = {row.options for row in report if row.kernel.startswith(source.name.partition("_att")[0])}
        assert of_source == set(nvrtc.option_sets(source))
        assert {o.HEAD_DIM for o in of_source} == {32, 64, 80, 128} and {o.HALF for o in of_source} == {0, 1}


@needs_nvrtc
def test_nothing_is_spilled_and_no_array_leaves_the_registers(report):
    assert [row for row in report if row.spilled or row.local] == []


@needs_nvrtc
def test_registers_stay_within_their_bound(report):
    assert [row for row in report if row.registers > nvrtc.registers_at_most(row.kernel, row.options)] == []


@needs_nvrtc
def test_the_default_block_pair_needs_no_opt_in_up_to_64_elements_and_each_machine_has_a_pair_for_each_head(report):
    for row in report:
        total = row.static_shared + row.dynamic_shared
        pair = (row.options.BLOCK_Q, row.options.BLOCK_K)
        assert (row.blocks_per_sm > 0) == (total <= nvrtc.MACHINES[row.arch].shared_block)
        assert row.blocks_per_sm or (row.kernel == "flash_forward" and row.arch == "sm_75" and pair != (32, 32))
        if row.kernel != "flash_forward" or (pair == (64, 32) and row.options.HEAD_DIM <= 64):
            assert total <= nvrtc.WITHOUT_OPT_IN


@needs_nvrtc
def test_static_shared_memory_is_what_the_header_states(report):
    for row in report:
        assert row.static_shared == (16 * (row.options.HEAD_DIM + 2) if row.kernel == "flash_decode_split" else 0)


ONE_LINE = 'extern "C" __global__ void k(float *x) {{ *x = {}; }}'


@needs_nvrtc
@pytest.mark.parametrize("spelling", ["__int_as_float(0xff800000)", "-1.0f/0.0f"])
def test_f4_this_spelling_of_minus_infinity_compiles_without_any_header(spelling):
    assert nvrtc.compile_source(ONE_LINE.format(spelling))[0].startswith(b"\x7fELF")


@needs_nvrtc
@pytest.mark.parametrize("spelling", ["-INFINITY", "-FLT_MAX", "NAN", "-HUGE_VALF", "-1e39f"])
def test_f4_this_spelling_does_not(spelling):
    with pytest.raises(nvrtc.CompileError, match="undefined|out of range"):
        nvrtc.compile_source(ONE_LINE.format(spelling))


@needs_nvrtc
def test_f4_headers_are_found_only_where_the_include_path_is_given():
    for header in ("cuda_fp16.h", "math.h", "limits"):
        with pytest.raises(nvrtc.CompileError, match="could not open source file"):
            nvrtc.compile_source(f"#include <{header}>\n{ONE_LINE.format(0)}")
    nvrtc.compile_source(f"#include <cuda_fp16.h>\n{ONE_LINE.format(0)}", headers=True)


@needs_nvrtc
def test_f4_without_extern_c_the_name_is_mangled():
    plain = ONE_LINE.format(0)
    assert b"_Z1kPf" in nvrtc.compile_source(plain.removeprefix('extern "C" '))[0]
    assert b"_Z1kPf" not in nvrtc.compile_source(plain)[0]


@pytest.mark.parametrize("source", nvrtc.SOURCES, ids=lambda source: source.name)
def test_f4_the_kernels_are_extern_c_spell_minus_infinity_in_bits_and_include_only_half(source):
    text = (KERNELS / f"{source.name}.cu").read_text(encoding="utf-8")
    code = "\n".join(line.partition("//")[0] for line in text.partition("*/")[2].splitlines())
    assert code.count('extern "C" __global__') == code.count("__global__") > 0
    assert "INFINITY" not in code and "__int_as_float(0xff800000)" in code
    assert code.count("#include") == 1 and "#if HALF\n#include <cuda_fp16.h>" in code


@needs_nvrtc
@pytest.mark.parametrize("source", nvrtc.SOURCES, ids=lambda source: source.name)
def test_f4_the_float_kernels_compile_with_nvrtc_alone(source):
    text = (KERNELS / f"{source.name}.cu").read_text(encoding="utf-8")
    options = next(iter(nvrtc.option_sets(source)))
    assert options.HALF == 0
    _cubin, log = nvrtc.compile_source(text, "sm_80", options._asdict(), headers=False)
    assert "warning" not in log


@needs_nvrtc
def test_an_error_names_the_students_line():
    text = (KERNELS / "flash_forward.cu").read_text(encoding="utf-8")
    before, _l, after = text.partition("alpha * l[r]")
    with pytest.raises(nvrtc.CompileError, match=rf"flash_forward\.cu\({before.count(chr(10)) + 1}\): error"):
        options = nvrtc.Options()._asdict()
        nvrtc.compile_source(f"{before}alhpa * l[r]{after}", "sm_80", options, name="flash_forward.cu")
