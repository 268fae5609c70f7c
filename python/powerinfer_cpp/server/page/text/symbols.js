// What commands of LaTeX stand for, as signs of Unicode.

// "name sign name sign …": short, and easy to add to.
const signs = (text) => {
    const found = text.trim().split(/\s+/);
    const map = new Map();
    for (let k = 0; k < found.length; k += 2) map.set(found[k], found[k + 1]);
    return map;
};

// Letters and what stands like one.
export const LETTERS = signs(`
alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ
lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ
phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ
Phi Φ Psi Ψ Omega Ω infty ∞ partial ∂ nabla ∇ hbar ℏ hslash ℏ ell ℓ imath ı jmath ȷ Re ℜ Im ℑ wp ℘
aleph ℵ beth ℶ emptyset ∅ varnothing ∅ top ⊤ bot ⊥ angle ∠ triangle △ square □ Box □ blacksquare ■
forall ∀ exists ∃ nexists ∄ neg ¬ lnot ¬ prime ′ degree ° circ ∘ checkmark ✓ dagger † ddagger ‡
clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ flat ♭ natural ♮ sharp ♯ pounds £ euro € S § P ¶
ldots … dots … dotsc … dotso … cdots ⋯ dotsb ⋯ dotsm ⋯ vdots ⋮ ddots ⋱ # # % % & & _ _ $ $ QED ∎
`);

export const OPERATORS = signs(`
pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ star ⋆ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙
cup ∪ cap ∩ uplus ⊎ sqcup ⊔ sqcap ⊓ vee ∨ wedge ∧ lor ∨ land ∧ setminus ∖ smallsetminus ∖ wr ≀
leq ≤ le ≤ leqslant ⩽ geq ≥ ge ≥ geqslant ⩾ neq ≠ ne ≠ ll ≪ gg ≫ lt < gt > equiv ≡ sim ∼ simeq ≃
approx ≈ cong ≅ propto ∝ asymp ≍ doteq ≐ prec ≺ succ ≻ preceq ⪯ succeq ⪰ triangleq ≜ coloneqq ≔
in ∈ notin ∉ ni ∋ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ perp ⟂
parallel ∥ nparallel ∦ mid ∣ nmid ∤ vdash ⊢ dashv ⊣ models ⊨ vDash ⊨ lesssim ≲ gtrsim ≳
to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔
implies ⟹ impliedby ⟸ iff ⟺ mapsto ↦ longmapsto ⟼ longrightarrow ⟶ longleftarrow ⟵
Longrightarrow ⟹ Longleftarrow ⟸ Longleftrightarrow ⟺ longleftrightarrow ⟷ hookrightarrow ↪
hookleftarrow ↩ uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ nearrow ↗ searrow ↘
nwarrow ↖ swarrow ↙ rightleftharpoons ⇌ rightharpoonup ⇀ leftharpoonup ↼ leadsto ⇝ therefore ∴
because ∵ colon : backslash \\ lhd ⊲ rhd ⊳ bowtie ⋈ amalg ⨿ diamond ⋄ bigcirc ◯ bmod mod
`);

// Operators whose limits stand above and below where there is room.
export const LARGE = signs(`
sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigvee ⋁ bigwedge ⋀ bigoplus ⨁ bigotimes ⨂ bigodot ⨀
biguplus ⨄ bigsqcup ⨆
`);

export const INTEGRALS = signs('int ∫ iint ∬ iiint ∭ oint ∮ oiint ∯');

export const DELIMITERS = signs(`
( ( ) ) [ [ ] ] | | / / < ⟨ > ⟩ { { } } lbrace { rbrace } lbrack [ rbrack ] langle ⟨ rangle ⟩
lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ vert | Vert ‖ lvert | rvert | lVert ‖ rVert ‖ backslash \\
uparrow ↑ downarrow ↓ lgroup ⟮ rgroup ⟯ ulcorner ⌜ urcorner ⌝
`);
DELIMITERS.set('.', '').set('\\|', '‖');

export const FUNCTIONS = new Set(
    ('arccos arcsin arctan arg cos cosh cot coth csc deg dim exp hom ker lg ln log sec sin sinh ' +
     'tan tanh sgn')
        .split(' '));

// Functions that take limits below.
export const LIMITS = new Set('det gcd inf lim max min Pr sup argmax argmin'.split(' '));
export const SPACED_LIMITS = new Map([['limsup', 'lim sup'], ['liminf', 'lim inf']]);

export const SPACES = new Map([
    [',', 0.167], ['thinspace', 0.167], [':', 0.222], ['>', 0.222], ['medspace', 0.222],
    [';', 0.278], ['thickspace', 0.278], ['!', -0.167], ['quad', 1], ['qquad', 2], [' ', 0.25],
    ['\n', 0.25], ['enspace', 0.5]
]);

// Signs above or below, and whether they grow with what they mark.
export const ACCENTS = new Map([
    ['hat', ['^', false]], ['widehat', ['^', true]], ['check', ['ˇ', false]], ['bar', ['¯', false]],
    ['vec', ['→', false]], ['overrightarrow', ['→', true]], ['overleftarrow', ['←', true]],
    ['dot', ['˙', false]], ['ddot', ['¨', false]], ['tilde', ['~', false]],
    ['widetilde', ['~', true]], ['acute', ['´', false]], ['grave', ['`', false]],
    ['breve', ['˘', false]], ['mathring', ['˚', false]], ['overbrace', ['⏞', true]]
]);
// Lines over and under something, by their class.
export const LINES = new Map([['overline', 'over'], ['underline', 'under']]);

// --- Alphabets -------------------------------------------------------------------------------

// Where capital letters, small letters and digits of an alphabet begin, and letters that Unicode
// has elsewhere.
const ALPHABETS = {
    bold: [0x1d400, 0x1d41a, 0x1d7ce, ''],
    boldItalic: [0x1d468, 0x1d482, 0x1d7ce, ''],
    double: [0x1d538, 0x1d552, 0x1d7d8, 'CℂHℍNℕPℙQℚRℝZℤ'],
    script: [0x1d49c, 0x1d4b6, 0, 'BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ'],
    fraktur: [0x1d504, 0x1d51e, 0, 'CℭHℌIℑRℜZℨ'],
    sans: [0x1d5a0, 0x1d5ba, 0x1d7e2, ''],
    mono: [0x1d670, 0x1d68a, 0x1d7f6, ''],
};
const GREEK = {
    bold: [0x1d6a8, 0x1d6c2],
    boldItalic: [0x1d71c, 0x1d736]
};

export const FONTS = new Map(Object.entries({
    mathrm: 'upright',
    rm: 'upright',
    mathup: 'upright',
    mathit: 'italic',
    mathnormal: 'italic',
    mathbf: 'bold',
    bf: 'bold',
    mathbfit: 'boldItalic',
    boldsymbol: 'boldItalic',
    bm: 'boldItalic',
    pmb: 'boldItalic',
    mathbb: 'double',
    mathcal: 'script',
    mathscr: 'script',
    mathfrak: 'fraktur',
    mathsf: 'sans',
    mathtt: 'mono',
}));

// A letter or digits of an alphabet; as they are where it has none.
export function inAlphabet(text, font) {
    const alphabet = ALPHABETS[font];
    if (!alphabet) return text;
    const [capitals, small, digits, others] = alphabet;
    return [...text]
        .map((c) => {
            const other = others.indexOf(c);
            if (other >= 0 && other % 2 === 0) return others[other + 1];
            const code = c.codePointAt(0);
            const from = (first, to) => String.fromCodePoint(to + code - first);
            if (c >= 'A' && c <= 'Z') return from(65, capitals);
            if (c >= 'a' && c <= 'z') return from(97, small);
            if (c >= '0' && c <= '9' && digits) return from(48, digits);
            const greek = GREEK[font];
            if (greek && c >= 'Α' && c <= 'Ω') return from(0x391, greek[0]);
            if (greek && c >= 'α' && c <= 'ω') return from(0x3b1, greek[1]);
            return c;
        })
        .join('');
}
