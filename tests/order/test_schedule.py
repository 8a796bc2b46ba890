import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orders import schedules

from feedline.errors import ScheduleError
from feedline.order.schedule import MAX_IMAGE_SIZE, Phase, Schedule


@pytest.mark.parametrize(
    "text",
    ["112x10@512,160x2", " 112x10@512 , 160x2 ", "112X10@512,160X2", "112 x 10 @ 512,160 x 2"],
)
def test_blanks_and_capitals_do_not_matter(text):
    assert Schedule.parse(text) == Schedule(
        (Phase(image_size=112, epochs=10, batch_size=512), Phase(image_size=160, epochs=2))
    )


def test_phases_without_size_are_written_as_own_and_cannot_be_mixed():
    schedule = Schedule.parse("ownx2@512, ownx1")
    assert schedule.phases == (Phase(epochs=2, batch_size=512), Phase(epochs=1))
    assert (str(schedule), schedule.image_sizes) == ("ownx2@512,ownx1", ())
    with pytest.raises(ScheduleError, match="size, got 8x1,ownx2"):
        Schedule.parse("8x1,ownx2")


UNREADABLE = (
    "|112|112x|x10|112x10@|112x10@@5|112*10|-112x10|112x-1|1.5x2|112x10x3|1e2x3|112x10@5@6|0x70x1"
    "|axb|\u0661\u0661\u0662x1|112x1\u00b2|1_0x1|+1x1|112x10;8x1|112x10 8x1"
)


@pytest.mark.parametrize("part", UNREADABLE.split("|"))
@pytest.mark.parametrize("around", ["{}", "224x1,{}", "{},224x1", "64x1,{},224x1@9"])
def test_unparsable_part_is_named_with_expected_form(part, around):
    with pytest.raises(ScheduleError, match=re.escape(f"cannot read {part!r}")) as caught:
        Schedule.parse(around.format(part))
    assert "SIZExEPOCHS[@BATCH]" in str(caught.value)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("0x1", "image_size"),
        (f"{MAX_IMAGE_SIZE + 1}x1", "image_size"),
        ("9" * 30 + "x1", "image_size"),
        ("8x0", "epochs"),
        ("8x1000001", "epochs"),
        ("8x1@0", "batch_size"),
        ("8x1@16777217", "batch_size"),
    ],
)
def test_number_out_of_range_is_named_with_its_part(part, name):
    with pytest.raises(ScheduleError, match=f"{name} must be a whole number from 1") as caught:
        Schedule.parse(f"224x1,{part}")
    assert repr(part) in str(caught.value)
    with pytest.raises(ScheduleError, match="at '9999"):  # more digits than int() reads
        Schedule.parse("9" * 10_000 + "x1")


def test_the_bounds_themselves_are_allowed():
    schedule = Schedule.parse(f"1x1@1,{MAX_IMAGE_SIZE}x1000000@16777216")
    assert [phase.image_size for phase in schedule.phases] == [1, MAX_IMAGE_SIZE]


@example("0x0@0")
@given(st.text(alphabet="0123456789xX@, -.\u00b2\u0661", max_size=20))
def test_any_text_is_a_valid_schedule_or_a_schedule_error(text):
    try:
        schedule = Schedule.parse(text)
    except ScheduleError:
        return
    assert Schedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("image_size", value) for value in (0, MAX_IMAGE_SIZE + 1, 2.0, True, "8")),
        *(("epochs", value) for value in (0, float("nan"))),
        *(("batch_size", value) for value in (0, 1.5)),
        *(("strength", value) for value in (-0.1, 1.1, float("nan"), "strong", None)),
    ],
)
def test_phase_out_of_range_raises_with_value(name, value):
    good = {"image_size": 8, "epochs": 1, "batch_size": 4, "strength": 0.5}
    with pytest.raises(ScheduleError, match=f"phase's {name} must be .*got {value!r}"):
        Phase(**{**good, name: value})


def test_schedule_is_accepted_in_every_form():
    phase = Phase(image_size=8, epochs=2)
    schedule = Schedule((phase,))
    for form in (schedule, "8x2", phase, [phase], (phase,), iter([phase])):
        assert Schedule.of(form) == schedule


@pytest.mark.parametrize("wrong", [5, b"8x2", ["8x2"], {"size": 8}, ()])
def test_invalid_schedule_is_rejected_with_value(wrong):
    with pytest.raises(ScheduleError, match="at least one phase" if wrong == () else "got"):
        Schedule.of(wrong)


@given(schedules, st.integers(0, 40))
def test_an_epoch_belongs_to_the_phase_its_number_falls_in(schedule, epoch):
    spelt_out = [phase for phase in schedule.phases for _ in range(phase.epochs)]
    assert Schedule.parse(str(schedule)) == schedule
    assert schedule.epochs == len(spelt_out)
    assert schedule.phase_at(epoch) is spelt_out[min(epoch, len(spelt_out) - 1)]
