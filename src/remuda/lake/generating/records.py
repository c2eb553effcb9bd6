"""The records: the steps of all messages, numbered in each trail by time, and said in full."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from remuda.devices.command import CommandType, Protocol
from remuda.lake.generating.drawing import Draw, pick, spell
from remuda.lake.generating.messages import device_number, gateway_number, is_pull
from remuda.lake.generating.recipe import GATEWAYS, Recipe
from remuda.lake.schemas import TRANSITIONS

MOST_STEPS = 100  # a path is shorter than this
_JOB_NAMES = (
    ("welcome", "receipt", "reminder"),
    ("charge", "refund", "settle"),
    ("daily", "weekly", "monthly"),
    ("notify", "sync", "clean_up"),
)
_COMMAND_NAMES = [
    CommandType.READ_CREDIT,
    CommandType.READ_POWER,
    CommandType.READ_VOLTAGE,
    CommandType.READ_VERSION,
    CommandType.TOP_UP,
    CommandType.TURN_ON,
    CommandType.TURN_OFF,
    CommandType.SET_TIME,
    CommandType.SET_POWER_LIMIT,
    CommandType.CLEAR_TAMPER,
]
# Who does it, by the part played; a message is given to one of them at each turn.
_WHO = {
    "client": ("client-web-1-201-5d1c0a", "client-web-2-198-b7e4f2", "client-batch-1-77-0c9a3e"),
    "worker": (
        "worker-jobs-1-4711-a1b2c3",
        "worker-jobs-1-4712-9f0e7d",
        "worker-jobs-2-3120-44c8b6",
        "worker-jobs-2-3121-e2d95a",
    ),
    "sender": ("sender-web-1-201-71ab3c", "sender-web-2-198-c03d5e"),
    "engine": ("engine-net-1-640-3b8f1d", "engine-net-2-655-f6a270"),
    "cli": ("cli-ops-1-9001-8e7d6c",),
}
_ID_SPREAD = 0x5DEECE66D  # odd: numbers are spread over all ids without two becoming the same
_STEP_TABLE = """
    code int, `left` string, entered string, attempt int, reason string,
    first_who int, count_who int, turn int,
    mark string, lost boolean, twice boolean, behind bigint, set_back bigint
"""


def numbered(recipe: Recipe, messages: DataFrame) -> DataFrame:
    """Every step up to the end: trail, seq, number, code, added_ms, made_ms, dwell_ms.

    In each trail they are numbered from 1 by time. Records are sorted in blocks of time, side by side; how
    many came before a block is counted first, so that no sort is ever larger than one block.
    """
    steps = _steps(recipe, messages)
    before = Window.partitionBy("trail").orderBy("block").rowsBetween(Window.unboundedPreceding, -1)
    counted = steps.groupBy("trail", "block").count()
    offsets = counted.select(
        "trail", "block", F.coalesce(F.sum("count").over(before), F.lit(0)).cast("bigint").alias("offset")
    )
    in_block = Window.partitionBy("trail", "block").orderBy("made_ms", "number", "code")
    placed = steps.repartition(recipe.tasks, "trail", "block").withColumn(
        "place", F.row_number().over(in_block)
    )
    return (
        placed.join(F.broadcast(offsets), ["trail", "block"])
        .withColumn("seq", F.col("offset") + F.col("place"))
        .drop("block", "offset", "place")
    )


def _steps(recipe: Recipe, messages: DataFrame) -> DataFrame:
    """One row for each step up to the end, in as few bytes as can be: all of them are sent round."""
    rows = messages.select(
        "number", "trail", "path", "times", F.posexplode("times").alias("step", "made_ms")
    ).where(F.col("made_ms") <= recipe.end_ms)
    # The last moment is of the last block, as are those before it.
    passed = (F.col("made_ms") - recipe.start_ms) / F.lit(float(recipe.span_ms))
    block = F.least(F.floor(passed * recipe.blocks), F.lit(recipe.blocks - 1)).cast("int")
    return rows.select(
        "number",
        "trail",
        block.alias("block"),
        (F.col("path") * MOST_STEPS + F.col("step")).alias("code"),
        F.get("times", F.lit(0)).alias("added_ms"),
        "made_ms",
        (F.col("made_ms") - F.get("times", F.col("step") - 1)).alias("dwell_ms"),
    )


def step_table(spark: SparkSession, recipe: Recipe) -> DataFrame:
    """What each step of each path says, by the code that `numbered` gives it."""
    names = [name for names in _WHO.values() for name in names]
    rows = []
    for number, path in enumerate(recipe.paths):
        behind = 0
        for place, step in enumerate(path.steps):
            who = _WHO[step.who]
            rows.append((
                number * MOST_STEPS + place, step.left, step.entered, step.attempt, step.reason,
                names.index(who[0]), len(who), step.turn,
                step.mark, step.lost, step.twice, step.behind, step.behind - behind,
            ))  # fmt: skip
            behind = step.behind
    return spark.createDataFrame(rows, _STEP_TABLE)


def records(spark: SparkSession, recipe: Recipe, steps: DataFrame) -> DataFrame:
    """The transitions that numbered steps are, with `mark` (the fault that one shows) and `lost` behind."""
    draw = Draw(recipe.seed)
    said = steps.join(F.broadcast(step_table(spark, recipe)), "code")
    if recipe.faults.duplicate:
        copies = F.when(F.col("twice"), F.array(F.lit(1), F.lit(2))).otherwise(F.array(F.lit(1)))
        said = said.withColumn("copy", F.explode(copies))
    names = [name for names in _WHO.values() for name in names]
    who = pick(names, F.col("first_who") + draw.below(F.col("count_who"), "who", F.col("turn")))
    # As the engine reckons it: never negative, be the clock set back or not.
    dwell = F.greatest(F.col("dwell_ms") - F.col("set_back"), F.lit(0).cast("bigint"))
    added = F.col("left").isNull() & ~F.col("lost")
    columns = {
        "source": F.lit(recipe.source),
        "queue": pick(recipe.trails, F.col("trail")),
        "seq": F.col("seq"),
        "message": _message_id(draw),
        "left": F.col("left"),
        "entered": F.col("entered"),
        "at": F.timestamp_millis(F.col("made_ms") - F.col("behind")),
        "dwell_ms": F.when(F.col("dwell_ms").isNotNull(), dwell),
        "attempt": F.col("attempt"),
        "reason": F.col("reason"),
        "who": who,
        **{name: F.when(added, column) for name, column in _about(recipe, draw).items()},
        "batch": F.lit(recipe.batch).cast("bigint"),
    }
    return said.select(*(columns[name].alias(name) for name in TRANSITIONS.names), "mark", "lost")


def _message_id(draw: Draw) -> Column:
    """Like those of `remuda.ids`: when it was added, some chance, and a part that no other message has."""
    unique = F.col("number") * F.lit(_ID_SPREAD) + F.lit(1)
    return F.concat(spell(F.col("added_ms"), 5), spell(draw.bits("id"), 4), spell(unique, 4))


def _about(recipe: Recipe, draw: Draw) -> dict[str, Column]:
    """What the record of its adding tells about a message."""
    trail, fleet = F.col("trail"), F.col("trail") - len(recipe.queues)
    is_command = fleet >= 0
    names = [name for place in range(len(recipe.queues)) for name in _JOB_NAMES[place % len(_JOB_NAMES)]]
    command = pick(_COMMAND_NAMES, draw.below(len(_COMMAND_NAMES), "name"))
    if not recipe.fleets:
        nothing = F.lit(None).cast("string")
        job = pick(names, trail * 3 + draw.below(3, "name"))
        return {"name": job, **dict.fromkeys(("device", "lane", "gateway", "grid"), nothing)}
    job = pick(names, trail * 3 + draw.below(3, "name")) if names else command
    gateway_place = gateway_number(draw)
    serial = 470_000_000 + fleet * 100_000 + device_number(draw)
    pushed = F.concat(F.lit(f"{Protocol.LORAWAN}:"), F.lower(F.lpad(F.hex(serial.cast("bigint")), 16, "0")))
    pulled = F.concat(
        F.when(gateway_place == GATEWAYS - 1, f"{Protocol.API_V2}:").otherwise(f"{Protocol.API_V1}:"),
        serial.cast("string"),
    )
    gateway = F.lower(F.lpad(F.hex((0x24E124FF0000 + fleet * 256 + gateway_place).cast("bigint")), 16, "0"))
    grid = F.concat(pick(recipe.fleets, fleet), F.when(gateway_place % 2 == 0, "-a").otherwise("-b"))
    lane = F.when(is_pull(draw), F.concat(F.lit("gateway:"), gateway)).otherwise(
        F.concat(F.lit("lorawan_network:"), grid)
    )
    device = F.when(is_pull(draw), pulled).otherwise(pushed)
    about = {"device": device, "lane": lane, "gateway": gateway, "grid": grid}
    return {
        "name": F.when(is_command, command).otherwise(job),
        **{name: F.when(is_command, column) for name, column in about.items()},
    }
