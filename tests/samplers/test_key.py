"""Keys: from where, in which form, and that none is ever shown."""

import copy
import logging
import os
import pickle
import stat

import numpy as np
import pytest

from ballsbins.errors import BallsBinsError, InvalidInputError, SecretError
from ballsbins.samplers import BallsAndBins, Key, Poisson, as_key, new_key
from ballsbins.samplers.key import encode

SECRET = bytes(range(100, 132))


def shows(text: str) -> bool:
    """Tell whether a text shows the secret in any usual form."""
    forms = [
        SECRET.hex(),
        SECRET.hex().upper(),
        repr(SECRET)[2:-1],
        str(list(SECRET))[1:-1],
        SECRET.decode("latin1"),
    ]
    forms += [str(int.from_bytes(SECRET, order)) for order in ("big", "little")]
    return any(form[: len(form) // 2] in text for form in forms)


def test_the_check_for_shown_secrets_sees_one():
    assert shows(f"key = {SECRET!r}")
    assert shows(SECRET.hex())


def test_new_keys_differ_and_are_secret():
    keys = {new_key() for _ in range(50)}
    assert len(keys) == 50
    assert all(key.is_secret for key in keys)


def test_nothing_shows_the_bytes(caplog):
    key = Key(SECRET)
    batches = BallsAndBins(3).batches(10, key)
    list(batches)
    for thing in (key, batches, [key], {"key": key}, BallsAndBins(3), Poisson(2).batches(5, SECRET)):
        for text in (repr(thing), str(thing), f"{thing}", f"{thing!r:>200}", "%s" % (thing,)):  # noqa: UP031
            assert not shows(text)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%s %r", key, batches)
    assert not shows(caplog.text)
    assert not hasattr(key, "__dict__")


def test_the_repr_shows_the_commitment_and_what_is_no_secret():
    assert repr(Key(SECRET)) == "Key(commitment='e119eb2981a357c9')"
    assert "not secret" in repr(Key.from_seed(1))


def test_a_key_cannot_be_changed():
    key = Key(SECRET)
    with pytest.raises(AttributeError):
        key._secret = bytes(32)
    with pytest.raises(AttributeError):
        key.other = 1


def test_the_commitment_tells_keys_apart():
    assert Key(SECRET).commitment() == Key(SECRET).commitment()
    assert len({Key.from_seed(seed).commitment() for seed in range(1000)}) == 1000
    Key(SECRET).require(Key(SECRET).commitment())
    with pytest.raises(SecretError, match="Resume with the key of that run"):
        Key(SECRET).require(Key.from_seed(3).commitment())


def test_equality_and_hash():
    assert Key(SECRET) == Key(SECRET)
    assert hash(Key(SECRET)) == hash(Key(SECRET))
    assert Key(SECRET) != Key(bytes(32))
    assert Key(SECRET) != SECRET


def test_pickling_carries_the_key_to_workers():
    for key in (Key(SECRET), Key.from_seed(9)):
        again = pickle.loads(pickle.dumps(key))
        assert again == key
        assert again.is_secret == key.is_secret
        assert copy.deepcopy(key) == key


def test_what_is_accepted_as_a_key():
    assert as_key(SECRET) == Key(SECRET)
    assert as_key(Key(SECRET)) == Key(SECRET)
    assert as_key(7) == as_key(np.int64(7)) == Key.from_seed(7)
    assert not as_key(7).is_secret


@pytest.mark.parametrize(
    "bad", [SECRET[:31], SECRET + b"x", b"", SECRET.hex(), 1.0, None, True, float("nan"), [1]]
)
def test_a_wrong_key_is_refused_without_being_shown(bad):
    with pytest.raises(SecretError) as caught:
        as_key(bad)
    assert "32" in str(caught.value)
    assert not shows(str(caught.value))
    with pytest.raises(SecretError):
        BallsAndBins(3).batches(10, bad)


def test_a_seed_out_of_range_is_refused():
    with pytest.raises(InvalidInputError, match="-1"):
        Key.from_seed(-1)
    with pytest.raises(InvalidInputError, match="seed"):
        Key.from_seed(1.5)
    with pytest.raises(SecretError, match="bits") as caught:  # perhaps a key, as an integer
        as_key(int.from_bytes(SECRET, "big"))
    assert not shows(str(caught.value))


def test_derived_keys_differ_by_domain():
    key = Key(SECRET)
    domains = [
        ("a", "b"),
        ("asb",),
        ("ab",),
        ("a", b"b"),
        ("a", 98),
        (),
        ("",),
        ("", ""),
        (0,),
        (b"",),
        ("b", "a"),
        ("noise", 1),
    ]
    derived = {key.derive(*domain) for domain in domains}
    assert len(derived) == len(domains)
    assert all(len(subkey) == 32 for subkey in derived)
    assert len({encode(*domain) for domain in domains}) == len(domains)
    with pytest.raises(InvalidInputError):
        key.derive(-1)
    with pytest.raises(InvalidInputError):
        key.derive(2**64)


class TestFiles:
    def test_save_and_read(self, tmp_path):
        path = tmp_path / "key"
        Key(SECRET).save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_bytes() == SECRET.hex().encode() + b"\n"
        assert Key.from_file(path) == Key.from_file(str(path)) == Key(SECRET)

    def test_save_is_private_even_with_a_generous_umask(self, tmp_path):
        old = os.umask(0)
        try:
            Key(SECRET).save(tmp_path / "key")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600

    def test_save_never_overwrites(self, tmp_path):
        path = tmp_path / "key"
        path.write_text("something else")
        with pytest.raises(SecretError, match="never overwritten") as caught:
            Key(SECRET).save(path)
        assert path.read_text() == "something else"
        assert not shows(str(caught.value))

    def test_save_follows_no_dangling_link(self, tmp_path):
        (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(SecretError):
            Key(SECRET).save(tmp_path / "key")
        assert not (tmp_path / "elsewhere").exists()

    def test_save_where_it_cannot_write(self, tmp_path):
        with pytest.raises(SecretError, match="cannot be written"):
            Key(SECRET).save(tmp_path / "missing" / "key")

    @pytest.mark.parametrize(
        "content",
        [
            SECRET,
            SECRET.hex().encode(),
            SECRET.hex().upper().encode() + b"\n",
            SECRET.hex().encode() + b"\r\n",
        ],
    )
    def test_forms(self, tmp_path, content):
        assert Key.from_file(private(tmp_path, content)) == Key(SECRET)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            SECRET[:31],
            SECRET + b"\n",
            SECRET.hex().encode()[:-1],
            SECRET.hex().encode() + b"\n\n",
            b"g" * 64,
            (" " + SECRET.hex()[:-1]).encode(),
            b"x" * 10_000,
        ],
    )
    def test_other_forms_are_refused_without_being_shown(self, tmp_path, content):
        with pytest.raises(SecretError, match="exactly 32 raw bytes or 64") as caught:
            Key.from_file(private(tmp_path, content))
        assert not shows(str(caught.value))
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o620, 0o602, 0o610, 0o777])
    def test_a_file_that_others_can_use_is_refused(self, tmp_path, mode):
        path = private(tmp_path, SECRET)
        path.chmod(mode)
        with pytest.raises(SecretError, match=f"mode {mode:04o}.*chmod 600") as caught:
            Key.from_file(path)
        assert not shows(str(caught.value))

    def test_a_read_only_file_is_fine(self, tmp_path):
        path = private(tmp_path, SECRET)
        path.chmod(0o400)
        assert Key.from_file(path) == Key(SECRET)

    def test_what_is_no_file(self, tmp_path):
        with pytest.raises(SecretError, match="cannot be read"):
            Key.from_file(tmp_path / "missing")
        os.mkfifo(tmp_path / "pipe", 0o600)
        for path in (tmp_path / "pipe", tmp_path):
            with pytest.raises(BallsBinsError):
                Key.from_file(path)

    def test_environment(self, tmp_path, monkeypatch):
        monkeypatch.setenv("BALLSBINS_KEY_FILE", str(private(tmp_path, SECRET)))
        assert Key.from_environment() == Key(SECRET)
        for unset in ("", None):
            if unset is None:
                monkeypatch.delenv("BALLSBINS_KEY_FILE")
            else:
                monkeypatch.setenv("BALLSBINS_KEY_FILE", unset)
            with pytest.raises(SecretError, match="BALLSBINS_KEY_FILE is not set"):
                Key.from_environment()


def private(folder, content):
    path = folder / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_every_run_of_a_master_key_has_a_key_of_its_own():
    master = Key(SECRET)
    one, two = master.for_run(), master.for_run()
    assert len({one, two, master}) == 3
    assert one.run != two.run
    assert master.run is None
    assert {key.commitment() for key in (one, two)} == {master.commitment()}
    again = master.for_run(one.run)
    assert again == one
    assert one.for_run() is one
    assert one.for_run(one.run) is one
    assert one.is_secret
    restored = pickle.loads(pickle.dumps(one))
    assert (restored, restored.run, restored.commitment()) == (one, one.run, one.commitment())
    assert not shows(repr(one))
    assert one.run in repr(one)
    batches = [list(map(list, BallsAndBins(9).batches(60, key))) for key in (one, two, again)]
    assert batches[0] == batches[2] != batches[1]


def test_a_seed_is_its_own_run_and_repeats():
    seed = Key.from_seed(3)
    assert seed.for_run() == seed
    assert seed.for_run().run == seed.for_run("seed").run == "seed"
    assert not seed.for_run().is_secret
    with pytest.raises(SecretError, match="whose only run is 'seed'"):
        seed.for_run("0" * 32)


@pytest.mark.parametrize("run", ["", "seed", "0" * 31, "G" * 32, 7, b"0" * 32])
def test_what_is_no_run_id_is_refused(run):
    with pytest.raises(SecretError, match="is not a run id"):
        Key(SECRET).for_run(run)


def test_the_key_of_one_run_does_not_become_that_of_another():
    one = Key(SECRET).for_run()
    with pytest.raises(SecretError, match="belongs to the run"):
        one.for_run("0" * 32)
