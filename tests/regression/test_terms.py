from lightning_predict.regression.end_to_end import terms_of


def test_terms_of_two_variables() -> None:
    assert [term.name for term in terms_of(["batch_size", "threads"])] == [
        "batch_size",
        "1 / batch_size",
        "threads",
        "1 / threads",
        "batch_size * threads",
        "batch_size / threads",
        "threads / batch_size",
        "1 / batch_size / threads",
    ]


def test_a_degree_of_1_makes_no_products_and_0_is_not_inverted() -> None:
    assert [term.name for term in terms_of(["num_gpus", "disk_seconds"], degree=1, not_inverted=["disk_seconds"])] == [
        "1 / num_gpus",
        "disk_seconds",
    ]


def test_only_inverted_variable_is_inverted_in_every_product() -> None:
    terms = terms_of(["batch_size", "flops_per_second"])
    assert [term.name for term in terms] == [
        "batch_size",
        "1 / batch_size",
        "1 / flops_per_second",
        "batch_size / flops_per_second",
        "1 / batch_size / flops_per_second",
    ]


def test_what_computes_and_what_moves_data_is_not_multiplied() -> None:
    names = {term.variables for term in terms_of(("batch_size", "flops_per_second", "bytes_per_second"), degree=3)}
    assert ("batch_size", "flops_per_second") in names
    assert ("batch_size", "bytes_per_second") in names
    assert not any({"flops_per_second", "bytes_per_second"} <= set(name) for name in names)


def test_squares_come_last_alone_or_divided_by_a_rate() -> None:
    terms = terms_of(["batch_size", "flops_per_second"], squared=["batch_size"])
    assert [term.name for term in terms][-2:] == ["batch_size^2", "batch_size^2 / flops_per_second"]
    assert not any("^" in term.name for term in terms_of(["batch_size"], degree=1, squared=["batch_size"]))
