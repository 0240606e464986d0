"""What the matrix library of a platform does to the operands of a product, beside multiplying."""

from .record import record


@record
class Handling:
    """What a platform's matrix product does to its operands, per byte, where one byte copied row by row is 1.

    Attributes:
        right: the right operand, which is packed; as much again when its last dimension is contracted.
        turned: the left operand when its last dimension is not contracted, and then a right one whose is.
        against: of a batch of thin products, the right operand when its last dimension is contracted.
        thin_turned: of one thin and deep product, the left operand when its last dimension is not contracted.
        thin_against: of one thin and deep product, the right operand when its last dimension is contracted.
        per_term: of a batch of these, one multiplication then, for which there is a plain loop; of rows of the right
            operand shorter than a register, `LANES` numbers, the loop takes as long as for one. As much where the right
            operand is read against its rows and these are shorter than a register.
        per_call: of such a batch, what each product costs otherwise: a call of the library.
        per_lane: of a batch, one multiplication of those that fill a register up beside the last columns of a result.
        small_turned: of small matrices, each product whose left operand's last dimension is not contracted.
        sorted: the right operand where its batch is stored in another order than that of the left one.
    """

    right: float = 0.0
    turned: float = 0.0
    against: float = 0.0
    thin_turned: float = 0.0
    thin_against: float = 0.0
    per_term: float = 0.0
    per_call: float = 0.0
    per_lane: float = 0.0
    small_turned: float = 0.0
    sorted: float = 0.0


# Only their ratio was measured (jaxlib 0.10.2, 64 to 4096 rows, 64 to 1024 columns). They are this small because they
# decide only between layouts that copy alike: how much of them threads hide is another thing on every machine, and XLA
# folds a transpose that is made instead. Elsewhere libraries take all forms alike.
#
# Of a batch of thin products little else is done than to read the large operand. On two cores one copied byte takes 25
# to 100 ps; a right operand whose last dimension is contracted took 35 to 115 ps more per byte. A left one whose is not
# XLA reads in a loop of its own: 100 ps more per multiplication than the library takes, 700 for 5 columns, and 150 ns
# less per product (8 to 30 products of 4 to 40 rows, 10 to 100 terms); of one product the library takes 130 to 330 ps
# more per byte, 300 to 800 on an Intel Cascade Lake, and 80 to 190 of a right one that it reads against its rows (8 to
# 64 rows, 64 to 512 terms, 512 to 8192 columns: 16 to 60 % of such a product's time). This judges outcomes only: no
# search should give up copies that fuse to please a product that is fast either way.
#
# An operand that XLA sorts into the batch of the other one is written and read again, while the transpose of a result
# is read by whoever wants it: 16 to 512 products, 16 or 64 rows, 16 to 64 terms, 64 to 256 columns, took 1.2 to 1.8
# times as long where the large operand was sorted for the sake of a result's transpose.
THIN = 64  # rows or columns of the other operand, up to which a product is a thin one
HANDLING = {
    "cpu": Handling(
        right=0.5 / 128,
        turned=4.0 / 128,
        against=0.5,
        thin_turned=4.0,
        thin_against=1.0,
        per_term=2.0,
        per_call=3000.0,
        per_lane=0.3,
        small_turned=16000.0,
        sorted=1.0,
    )
}
