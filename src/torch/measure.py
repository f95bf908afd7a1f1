"""How far results are from what is right: the parts that `bound.rs` says limits of."""

# Types of which a value is right or wrong.
WHOLE = ("i64", "i32", "u8", "i8")

# Elements that are compared at a time: what this takes in doubles is little beside the results.
AT_ONCE = 1 << 25

# An element that is off by this share of itself is lost, unless it is as small as this beside its row.
LOST = 0.5
NOTHING = 1e-20


def share_of(part, whole):
    """A part of a whole where both may be zero: nothing of nothing is nothing."""
    return torch.where(part == 0, torch.zeros_like(part), part / whole)


def measure(y, r, form, limit=None):
    """How far `y` is from `r`, both flat; the parts are those of `bound.rs`, which says what they are. Elements that are off by more
    than `limit` units are counted; so are those of which nothing is left, and of 16 bits those that are not the number nearest to `r`."""
    if form.get("dtype") in WHOLE:
        return measure_whole(y, r)
    u, found = form["u"], rows_found(y, r, form, limit)
    sums, counts, tops = summed(found, form["row"]) if found else swept(y, r, form, limit)
    (errors, values, along), (row_share, most, worst, at) = sums, tops
    counted = dict(zip(("misplaced", "outside", "lost", "strayed"), counts))
    share = lambda part, whole: 0.0 if part == 0.0 else part / whole if whole != 0.0 else float("inf")
    relative = share(errors, values) ** 0.5
    element = float("inf") if counted["misplaced"] == 0 and worst == float("inf") else most / u
    parts = [relative / u, row_share**0.5 / u, element, share(abs(along), values) / u]
    here = [float(y[at].to(torch.float64)), float(r[at])] if r.numel() else [0.0, 0.0]
    return {"parts": bits(parts), "rms": bits([relative]), "at": at, **counted, "values": bits(here)}


def summed(parts, row):
    """What [`swept`] gives, of what was found row by row."""
    sums = torch.stack([found[:, :7].sum(0) for found in parts]).sum(0).tolist()
    tops = torch.stack([torch.stack([share_of(found[:, 0], found[:, 1]).amax(), found[:, 7].amax()]) for found in parts]).amax(0)
    worst = [(found[:, 8].max(0), found, number) for number, found in enumerate(parts)]
    (worst, place), found, number = max(worst, key=lambda it: float(it[0][0]))
    at = (number * ROWS_AT_ONCE + int(place)) * row + int(found[place, 9])
    return sums[:3], [int(count) for count in sums[3:]], (*tops.tolist(), float(worst), at)


def swept(y, r, form, limit):
    """Sums of squared errors, of squares and of products; how many are misplaced, outside, lost and strayed; the worst row's share, the largest
    finite element, the worst as it is shown and its place: with tensors, some rows at a time."""
    row, u, largest, underflow = form["row"], form["u"], form["largest"], form["underflow"]
    rows = r.numel() // row
    device = r.device
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    counts = torch.zeros(4, dtype=torch.int64, device=device)
    worst = []
    step = max(1, AT_ONCE // row)
    for first in range(0, rows, step):
        some = min(step, rows - first)
        b = r[first * row : (first + some) * row].view(some, row)
        a = y[first * row : (first + some) * row].view(some, row).to(torch.float64)
        undefined, size = torch.isnan(b), b.abs()
        beyond = size > 1.001 * largest
        overflowed = torch.isinf(a) & (torch.signbit(a) == torch.signbit(b))
        off = ~undefined & ~beyond & torch.isfinite(a)
        alike = (undefined & torch.isnan(a)) | (overflowed & ~undefined & (size >= 0.999 * largest))
        misplaced = ~(off | alike)
        b = torch.where(off, b, 0.0)
        d = torch.where(off, a, 0.0) - b
        d = torch.sign(d) * (d.abs() - underflow).clamp_(min=0.0)
        errors, values, finite = (d * d).sum(1), (b * b).sum(1), off.sum(1)
        sums += torch.stack([errors.sum(), values.sum(), (d * b).sum()])
        rms = torch.where(finite > 0, (values / finite).sqrt(), 0.0)
        rms, size = rms.unsqueeze(1), b.abs()
        counts[2] += ((d.abs() > LOST * size) & (size > NOTHING * rms)).sum()
        if y.element_size() == 2:
            counts[3] += (off & (a != b.to(y.dtype).to(torch.float64))).sum()
        each = share_of(d.abs(), size + rms)
        counts[0] += misplaced.sum()
        if limit is not None:
            counts[1] += (misplaced | (off & ~(each / u <= limit))).sum()
        most = torch.where(torch.isfinite(each), each, 0.0).amax()
        each = torch.where(misplaced, torch.inf, each).view(-1)
        place = each.argmax()
        worst.append(torch.stack([each[place], (place + first * row).to(torch.float64), share_of(errors, values).amax(), most]))
        del a, b, d, off, alike, misplaced, beyond, overflowed, undefined, size, each
    if not worst:
        return [0.0] * 3, [0] * 4, (0.0, 0.0, 0.0, 0)
    worst = torch.stack(worst).cpu()
    top = worst[worst[:, 0].argmax()]
    return sums.tolist(), counts.tolist(), (float(worst[:, 2].max()), float(worst[:, 3].max()), float(top[0]), int(top[1]))


def measure_whole(y, r):
    """The same of whole numbers, which are right or wrong."""
    y = y.to(torch.int64)
    wrong = y != r
    count, at = int(wrong.sum()), int(wrong.to(torch.uint8).argmax()) if r.numel() else 0
    here = [float(y[at]), float(r[at])] if r.numel() else [0.0, 0.0]
    share = count / max(1, r.numel())
    return {"parts": bits([0.0] * 4), "rms": bits([share]), "at": at, "misplaced": count, "outside": count, "lost": 0, "strayed": 0, "values": bits(here)}


def bits(numbers):
    """Doubles as JSON has them all: NaN and infinity too."""
    return [struct.unpack("<Q", struct.pack("<d", number))[0] for number in numbers]


def all_finite(one):
    if one is None or not one.is_floating_point():
        return True
    return all(bool(torch.isfinite(part).all()) for part in one.reshape(-1).split(AT_ONCE))


