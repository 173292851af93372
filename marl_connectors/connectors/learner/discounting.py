"""Discounted sums, under the path by which the learner pieces know them."""

from marl_connectors.ops.discounting import discounted_sums, rows_within

__all__ = ["discounted_sums", "rows_within"]
