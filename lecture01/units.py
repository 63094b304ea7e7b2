"""How quantities are shown, so that sixty laptops with other last bits print the same table."""

from language import _


def in_u(ratio):
    """An error as a whole number of rounding units u, "< 1 u" below one."""
    return "< 1 u" if ratio < 1 else f"{ratio:,.0f} u" if ratio < 1e6 else f"{ratio:.0e} u"


def magnitude(error):
    """Two digits; of what only rounding in FP32 makes one, and nothing but a limit of float64's."""
    if error == 0:
        return "0"
    return f"{error:.1e}" if error > 1e-5 else f"{error:.0e}" if error > 1e-12 else "< 1e-12"


def roughly(count, of=1000):
    """A share whose last digits depend on the computer's exp: 0 exactly, else to the nearest 10 %."""
    return "0" if count == 0 else _("about {percent:.0f}%").format(percent=round(100 * count / of, -1))


def giga(count):
    """A count in units of 10**9."""
    return f"{count / 1e9:.3f}" if count >= 1e7 else f"{count / 1e9:.1e}"
