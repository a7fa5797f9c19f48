"""The BibTeX entries of exactly those methods that a run and its accounting used."""

from __future__ import annotations

from ballsbins.accounting.curve import Kind
from ballsbins.mechanism import Mechanism
from ballsbins.report.card_parts import library_versions
from ballsbins.samplers import BallsAndBins, Deterministic, Poisson, Shuffle

_ENTRIES = {
    "chua25balls": """@inproceedings{chua25balls,
  title     = {Balls-and-Bins Sampling for {DP-SGD}},
  author    = {Chua, Lynn and Ghazi, Badih and Harrison, Charlie and Leeman, Ethan and Kamath, Pritish and
               Kumar, Ravi and Manurangsi, Pasin and Sinha, Amer and Zhang, Chiyuan},
  booktitle = {AISTATS},
  year      = {2025},
  note      = {the sampler, its dominating pair and Monte Carlo accounting},
}""",
    "abadi16deep": """@inproceedings{abadi16deep,
  title     = {Deep Learning with Differential Privacy},
  author    = {Abadi, Mart{\\'\\i}n and Chu, Andy and Goodfellow, Ian J. and McMahan, H. Brendan and Mironov, Ilya and
               Talwar, Kunal and Zhang, Li},
  booktitle = {CCS},
  pages     = {308--318},
  year      = {2016},
  note      = {DP-SGD},
}""",
    "chua24private": """@inproceedings{chua24private,
  title     = {How Private are {DP-SGD} Implementations?},
  author    = {Chua, Lynn and Ghazi, Badih and Kamath, Pritish and Kumar, Ravi and Manurangsi, Pasin and
               Sinha, Amer and Zhang, Chiyuan},
  booktitle = {ICML},
  year      = {2024},
  note      = {bounds for shuffled batches},
}""",
    "chua24scalable": """@inproceedings{chua24scalable,
  title     = {Scalable {DP-SGD}: Shuffling vs. {P}oisson Subsampling},
  author    = {Chua, Lynn and Ghazi, Badih and Kamath, Pritish and Kumar, Ravi and Manurangsi, Pasin and
               Sinha, Amer and Zhang, Chiyuan},
  booktitle = {NeurIPS},
  year      = {2024},
  note      = {truncated batches and their penalty},
}""",
    "balle18improving": """@inproceedings{balle18improving,
  title     = {Improving the {G}aussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
               Denoising},
  author    = {Balle, Borja and Wang, Yu-Xiang},
  booktitle = {ICML},
  year      = {2018},
  note      = {the privacy curve of the Gaussian mechanism},
}""",
    "zhu22optimal": """@inproceedings{zhu22optimal,
  title     = {Optimal Accounting of Differential Privacy via Characteristic Function},
  author    = {Zhu, Yuqing and Dong, Jinshuo and Wang, Yu-Xiang},
  booktitle = {AISTATS},
  pages     = {4782--4817},
  year      = {2022},
  note      = {dominating pairs},
}""",
    "koskela20computing": """@inproceedings{koskela20computing,
  title     = {Computing Tight Differential Privacy Guarantees Using {FFT}},
  author    = {Koskela, Antti and J{\\"a}lk{\\"o}, Joonas and Honkela, Antti},
  booktitle = {AISTATS},
  pages     = {2560--2569},
  year      = {2020},
  note      = {composition by Fourier transform},
}""",
    "doroshenko22connect": """@article{doroshenko22connect,
  title     = {Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions},
  author    = {Doroshenko, Vadym and Ghazi, Badih and Kamath, Pritish and Kumar, Ravi and Manurangsi, Pasin},
  journal   = {Proceedings on Privacy Enhancing Technologies},
  volume    = {2022},
  number    = {4},
  pages     = {552--570},
  year      = {2022},
  note      = {the discretisation from above},
}""",
    "hoeffding63probability": """@article{hoeffding63probability,
  title     = {Probability Inequalities for Sums of Bounded Random Variables},
  author    = {Hoeffding, Wassily},
  journal   = {Journal of the American Statistical Association},
  volume    = {58},
  number    = {301},
  pages     = {13--30},
  year      = {1963},
  note      = {the confidence of Monte Carlo bounds},
}""",
    "david04order": """@book{david04order,
  title     = {Order Statistics},
  author    = {David, Herbert A. and Nagaraja, Haikady N.},
  publisher = {John Wiley \\& Sons},
  year      = {2004},
  note      = {fewer coordinates to draw},
}""",
    "mironov17renyi": """@inproceedings{mironov17renyi,
  title     = {R{\\'e}nyi Differential Privacy},
  author    = {Mironov, Ilya},
  booktitle = {CSF},
  pages     = {263--275},
  year      = {2017},
}""",
    "ponomareva23dpfy": """@article{ponomareva23dpfy,
  title     = {How to {DP}-fy {ML}: A Practical Guide to Machine Learning with Differential Privacy},
  author    = {Ponomareva, Natalia and Hazimeh, Hussein and Kurakin, Alex and Xu, Zheng and Denison, Carson and
               McMahan, H. Brendan and Vassilvitskii, Sergei and Chien, Steve and Thakurta, Abhradeep Guha},
  journal   = {Journal of Artificial Intelligence Research},
  volume    = {77},
  pages     = {1113--1201},
  year      = {2023},
  note      = {what a privacy statement reports},
}""",
}


def cited(mechanism: Mechanism, kind: Kind) -> list[str]:
    """Keys of the works behind a run and behind the accounting that gave this kind of answer."""
    sampler = mechanism.sampler
    keys = ["abadi16deep"]
    match sampler:
        case BallsAndBins():
            keys.append("chua25balls")
        case Poisson():
            keys.append("zhu22optimal")
        case Shuffle():
            keys += ["chua24private", "chua25balls"]  # both lower bounds
    composed = kind == "bracket" or (isinstance(sampler, Shuffle) and mechanism.epochs > 1)
    if composed:
        keys += ["doroshenko22connect", "koskela20computing"]
    if isinstance(sampler, (Deterministic, Shuffle)) or kind == "closed form":
        keys.append("balle18improving")
    if sampler.max_batch_size is not None:
        keys.append("chua24scalable")
    if kind == "sampled":
        keys += ["david04order", "hoeffding63probability"]
    if kind == "upper bound":
        keys.append("mironov17renyi")
    return [*keys, "ponomareva23dpfy"]


def citation(mechanism: Mechanism, kind: Kind) -> str:
    """Give the BibTeX of exactly those works that a run, its accounting and its statement are based on.

    Args:
        mechanism: what was run.
        kind: the kind of the reported answer (`Bound.kind`).

    Returns:
        BibTeX entries, separated by empty lines.

    Example:
        >>> from ballsbins import BallsAndBins, Mechanism
        >>> from ballsbins.report import citation
        >>> run = Mechanism(BallsAndBins(steps=1000), noise_multiplier=0.5)
        >>> "Balls-and-Bins Sampling" in citation(run, run.epsilon(1e-6).kind)
        True
    """
    own = f"""@software{{ballsbins,
  title     = {{ballsbins: differentially private training with balls-and-bins batches, and its exact privacy}},
  author    = {{{{The ballsbins maintainers}}}},
  version   = {{{library_versions()["ballsbins"]}}},
}}"""
    return "\n\n".join([*(_ENTRIES[key] for key in cited(mechanism, kind)), own]) + "\n"
