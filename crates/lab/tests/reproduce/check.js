// Says what is wrong with a page of pictures, as an attribute of its body.
//
// Text of a picture must lie inside it, must not lie on other text, and must stand out from the
// ground; the page must not be wider than its window.
const faults = [];
// Of what is loaded; of scripts the console tells.
addEventListener("error", ({ target }) => {
  if (target !== window) faults.push(`${target.tagName} did not load`);
}, true);
addEventListener("load", () => {
  const name = (element) => element.closest("[id]")?.id ?? "the page";
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    faults.push(`the page is ${root.scrollWidth} wide, its window ${root.clientWidth}`);
  }
  const luminance = (color) => {
    const part = (value) =>
      value <= 10 ? value / 3294 : ((value / 255 + 0.055) / 1.055) ** 2.4;
    const [red, green, blue] = color.match(/[\d.]+/g).map(Number);
    return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
  };
  const page = luminance(getComputedStyle(document.body).backgroundColor);
  // A picture's own, where it has one.
  const ground_of = (picture) => {
    const own = picture.querySelector("rect");
    const [whole, part] = [picture, own].map((one) => one?.getBoundingClientRect().width);
    return own && part >= whole - 1 ? luminance(getComputedStyle(own).fill) : page;
  };
  const contrast = (color, ground) => {
    const [dark, light] = [luminance(color), ground].sort((one, other) => one - other);
    return (light + 0.05) / (dark + 0.05);
  };
  let texts = 0;
  for (const picture of document.querySelectorAll("svg")) {
    const frame = picture.getBoundingClientRect();
    const labels = [...picture.querySelectorAll("text")]
      .filter((label) => label.textContent.trim())
      .map((label) => {
        return { label, text: label.textContent.trim(), at: label.getBoundingClientRect() };
      });
    texts += labels.length;
    for (const { label, text, at } of labels) {
      const is_inside = at.width > 0 && at.left >= frame.left - 0.5 && at.top >= frame.top - 0.5 &&
        at.right <= frame.right + 0.5 && at.bottom <= frame.bottom + 0.5;
      if (!is_inside) faults.push(`${name(picture)}: '${text}' is cut off`);
      const found = contrast(getComputedStyle(label).fill, ground_of(picture));
      if (found < 4.5) faults.push(`${name(picture)}: '${text}' has contrast ${found.toFixed(1)}`);
    }
    labels.forEach((one, index) => labels.slice(index + 1).forEach((other) => {
      const [a, b] = [one.at, other.at];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      // Boxes have room above and below their letters.
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 0.5 && down > 0.4 * Math.min(a.height, b.height)) {
        faults.push(`${name(picture)}: '${one.text}' lies on '${other.text}'`);
      }
    }));
  }
  document.body.setAttribute("data-texts", texts);
  document.body.setAttribute("data-faults", JSON.stringify(faults));
});
