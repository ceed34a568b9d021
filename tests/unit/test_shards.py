"""The setting `shard`: names, refusals, and the row filter that goes with it."""

from __future__ import annotations

import pytest

from cdc import app
from cdc.errors import ConfigurationError
from cdc.postgres.slot import Part, Table, publication_sql
from cdc.settings import Settings, load

MINIMAL = {"CDC_NAME": "shop", "CDC_POSTGRES__DSN": "postgresql://cdc@127.0.0.1/shop"}


def settings(**environment: str) -> Settings:
    return load(None, (), {**MINIMAL, **{f"CDC_{name.upper()}": value for name, value in environment.items()}})


def test_a_shard_has_its_own_names_and_shares_what_all_write_to() -> None:
    shard = settings(shard="1/2")
    assert shard.name == "shop_1of2"
    assert shard.transactional_id == "cdc-shop_1of2"
    assert shard.postgres.slot == shard.postgres.publication == "cdc_shop_1of2"
    assert shard.topics.position == "_cdc.shop_1of2.position"
    assert shard.topics.dead_letter == "cdc.shop.dead-letter"
    assert shard.outbox.source == "/shop_1of2"
    assert shard.http.listen == "127.0.0.1:8643"


def test_names_that_were_written_down_differ_between_shards_as_well() -> None:
    written = {
        "postgres__slot": "s",
        "postgres__publication": "p",
        "topics__position": "t",
        "outbox__source": "/me",
        "http__listen": "[::1]:80",
    }
    first, second = settings(shard="0/2", **written), settings(shard="1/2", **written)
    assert (first.postgres.slot, first.postgres.publication, first.topics.position) == ("s_0of2", "p_0of2", "t.0of2")
    assert first.outbox.source == "/me/0of2"
    assert (first.http.listen, second.http.listen) == ("[::1]:80", "[::1]:81")
    assert settings(shard="1/2", http__listen="off").http.address is None


def test_without_the_setting_nothing_changes() -> None:
    assert settings().shard is None
    assert app.table(settings()).part is None


@pytest.mark.parametrize("value", ["2/2", "-1/2", "0", "0/0", "0/65", "a/b", "0/2 "])
def test_what_is_no_shard_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a shard"):
        settings(shard=value)


@pytest.mark.parametrize(("key", "value"), [("outbox__message_prefix", "outbox")])
def test_what_shards_cannot_do_together_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match="shard"):
        settings(shard="0/2", **{key: value})


def test_the_publication_chooses_the_rows_of_the_shard_by_the_mapped_key() -> None:
    table = app.table(settings(shard="1/2", outbox__columns__aggregateid="Order No"))
    assert table.part == Part("Order No", 1, 2)
    assert publication_sql("p", table) == (
        'CREATE PUBLICATION "p" FOR TABLE "public"."outbox" WHERE (((pg_catalog.hash_record(ROW("Order No")) & 2147483647) % 2) = 1)'
        " WITH (publish = 'insert', publish_via_partition_root = true)"
    )
    assert "WHERE" not in publication_sql("p", Table("public", "outbox"))


def test_a_filter_is_known_as_the_server_prints_it() -> None:
    part = Part("aggregateid", 1, 2)
    assert part.same("(((hash_record(ROW(aggregateid)) & 2147483647) % 2) = 1)")
    assert not part.same("(((hash_record(ROW(aggregateid)) & 2147483647) % 2) = 0)")
    assert not part.same("(((hash_record(ROW(id)) & 2147483647) % 2) = 1)")
