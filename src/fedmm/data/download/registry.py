"""The public files behind the data sets: what they are called, their checksums, and where they can be had."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fedmm.core.errors import unknown
from fedmm.data.sources import Archive, Edition, Source, StoredFile, read_checksums


@cache
def sources() -> dict[str, Source]:
    """All sources by name."""
    return {source.name: source for source in (_mnist(), _bsds500(), _office31(), _mobilenetv2())}


NEEDED = {"mnist_m": ("mnist", "bsds500")}
"""The sources of a data set that has no source of its name."""


def sources_of(name: str) -> list[Source]:
    """The sources that a source's or a data set's name stands for."""
    known = sources()
    if name not in {*known, *NEEDED}:
        raise unknown("data", name, {*known, *NEEDED})
    return [known[each] for each in NEEDED.get(name, (name,))]


def _listed(name: str, *addresses: str) -> tuple[StoredFile, ...]:
    text = files("fedmm.data").joinpath("checksums", f"{name}.sha256").read_text(encoding="utf-8")
    return tuple(read_checksums(text, addresses, f"{name}.sha256"))


def _mnist() -> Source:
    listed = _listed(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )
    return Source(
        "mnist",
        "70,000 handwritten digits",
        "none stated",
        "LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition, 1998",
        (Edition("idx", listed),),
    )


def _bsds500() -> Source:
    listed = _listed("bsds500", "https://raw.githubusercontent.com/BIDS/BSDS500/master/BSDS500/data/images/train/")
    return Source(
        "bsds500",
        "200 photographs, the training part of the Berkeley segmentation data",
        "none stated; asks for citation",
        "Arbelaez, Maire, Fowlkes and Malik, Contour detection and hierarchical image segmentation, TPAMI 2011",
        (Edition("train", listed),),
    )


def _office31() -> Source:
    resized = _listed("office31")
    at = {
        "amazon": "https://cloud.tsinghua.edu.cn/f/edc8d1bba1c740dc821c/?dl=1",
        "dslr": "https://cloud.tsinghua.edu.cn/f/ca6df562b7e64850ad7f/?dl=1",
        "webcam": "https://cloud.tsinghua.edu.cn/f/82b24ed2e08f4a3c8888/?dl=1",
    }
    return Source(
        "office31",
        "4,110 pictures of 31 office objects: from a shop, by a camera, by a webcam",
        "none stated; asks for citation",
        "Saenko, Kulis, Fritz and Darrell, Adapting visual category models to new domains, ECCV 2010",
        (
            Edition("resized", resized),
            Edition(
                "originals",
                tuple(StoredFile(file.path) for file in resized),
                tuple(Archive(domain, (address,)) for domain, address in at.items()),
                note="nobody published checksums of these archives: names are compared and every picture is decoded",
            ),
        ),
        parts=tuple(at),
    )


def _mobilenetv2() -> Source:
    def torchvision(name: str, digits: str) -> Edition:
        file = f"mobilenet_v2-{digits}.pth"
        return Edition(
            name,
            (StoredFile(file, sha256=digits, addresses=(f"https://download.pytorch.org/models/{file}",)),),
            note="the published checksum is the first 8 digits of the sha256",
        )

    return Source(
        "mobilenetv2",
        "MobileNetV2's weights from ImageNet",
        "MIT as the Keras weights' package states it, BSD-3-Clause for torchvision's",
        "Sandler, Howard, Zhu, Zhmoginov and Chen, MobileNetV2: inverted residuals and linear bottlenecks, CVPR 2018",
        (
            Edition("keras", _listed("mobilenetv2")),
            torchvision("torchvision-v2", "7ebf99e0"),
            torchvision("torchvision-v1", "b0353104"),
        ),
    )
