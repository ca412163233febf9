from gemmill.profiler.measure.telemetry import Reading, parse_smi, summarise, throttle_reasons


def test_nvidia_smis_answer_is_read() -> None:
    reading = parse_smi(["1980", "3201", "512.25", "48", "0x0000000000000004"])
    assert reading == Reading(1980, 3201, 512.25, 48, ("software power cap",))


def test_what_a_gpu_does_not_report_reads_as_zero() -> None:
    assert parse_smi(["[N/A]", "3201", "[N/A]", "48", "[N/A]"]) == Reading(0, 3201, 0.0, 48, ())


def test_idle_is_no_reason_and_several_are_kept() -> None:
    assert throttle_reasons(0x1) == ()
    assert throttle_reasons(0x1 | 0x4 | 0x40) == ("software power cap", "hardware thermal slowdown")


def test_a_summary_takes_medians_and_every_reason() -> None:
    readings = [
        Reading(1900, 3201, 300.0, 40, ()),
        Reading(1500, 3201, 690.0, 50, ("software power cap",)),
        Reading(1600, 3201, 700.0, 60, ("hardware slowdown",)),
    ]
    assert summarise(readings) == Reading(1600, 3201, 690.0, 50, ("software power cap", "hardware slowdown"))
