/* Brings the figures of this folder to life: loads Vega when one comes near
   the view, binds its controls, follows the theme and the width of the page,
   and says in words what the figure shows. */
(function () {
  "use strict";

  const COLORS = {
    light: {
      ink: "#1a1a1a", paper: "#ffffff", faint: "#949494",
      query: "#0072B2", key: "#B34700", value: "#00734F", orange: "#C77700",
    },
    dark: {
      ink: "#e8e8e8", paper: "#121212", faint: "#8a8a8a",
      query: "#6CBCF0", key: "#FF9D5C", value: "#4FD1A5", orange: "#F0B429",
    },
  };

  /* The book, Colab and JupyterLab each mark a dark page in their way. */
  function theme() {
    const root = document.documentElement;
    const dark =
      root.dataset.theme === "dark" ||
      root.getAttribute("theme") === "dark" ||
      (document.body && document.body.dataset.jpThemeLight === "false");
    return dark ? "dark" : "light";
  }

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream();
    const unpacked = stream.pipeThrough(new DecompressionStream("gzip"));
    return new Response(unpacked).text();
  }

  /* From the figure itself in a notebook, from the address in the book. */
  async function load(figure, address) {
    const packed = figure.querySelector(".explorable-library");
    const code = packed ? await unpack(packed.textContent) : "";
    const script = document.createElement("script");
    // Vega would hand itself to a module loader that is around, or take the
    // place of another Vega.
    const { define, vega } = window;
    window.define = undefined;
    try {
      await new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = () => {
          reject(new Error("Vega cannot be loaded from " + address));
        };
        if (packed) {
          script.textContent = code;
          resolve();
        } else {
          script.src = address;
        }
        document.head.append(script);
      });
      return window.vega;
    } finally {
      window.define = define;
      window.vega = vega || window.vega;
    }
  }

  async function draw(figure, vega) {
    const part = (name) => figure.querySelector(".explorable-" + name);
    const { spec } = JSON.parse(part("spec").textContent);
    const live = part("live");
    live.hidden = false;
    const room = () => Math.floor(part("view").clientWidth);
    const view = new vega.View(vega.parse(spec), {
      container: part("view"),
      bind: part("controls"),
      renderer: "svg",
    });
    const dress = () => {
      for (const [name, color] of Object.entries(COLORS[theme()])) {
        view.signal(name, color);
      }
      return view;
    };
    await dress().signal("room", room()).runAsync();
    // Vega's labels hold the value too, which a screen reader says anyway.
    for (const control of part("controls").querySelectorAll("label")) {
      const field = control.querySelector("input, select");
      field.setAttribute(
        "aria-label", control.querySelector(".vega-bind-name").textContent);
      // JupyterLab would take the arrow keys from it.
      field.setAttribute("data-lm-suppress-shortcuts", "true");
    }
    for (const picture of figure.querySelectorAll(".explorable-still")) {
      picture.hidden = true;
    }

    let speaking = 0;
    const say = (text) => {
      clearTimeout(speaking);
      speaking = setTimeout(() => { part("readout").textContent = text; }, 80);
    };
    say(view.signal("readout"));
    view.addSignalListener("readout", (_, text) => say(text));

    new ResizeObserver(() => {
      if (room() > 0 && room() !== view.signal("room")) {
        view.signal("room", room()).runAsync();
      }
    }).observe(part("view"));
    for (const element of [document.documentElement, document.body]) {
      new MutationObserver(() => dress().runAsync()).observe(element, {
        attributes: true,
        attributeFilter: ["data-theme", "theme", "data-jp-theme-light"],
      });
    }
    figure.dataset.state = "live";
  }

  /* Make one figure live as soon as a reader comes near it. */
  function start(figure, address) {
    const begin = () =>
      (window.attentionVega = window.attentionVega || load(figure, address))
        .then((vega) => draw(figure, vega))
        .catch((error) => { figure.dataset.state = error.message; });
    new IntersectionObserver((entries, observer) => {
      if (entries.some((entry) => entry.isIntersecting)) {
        observer.disconnect();
        // The text comes first.
        if (document.readyState === "complete") {
          begin();
        } else {
          window.addEventListener("load", begin);
        }
      }
    }, { rootMargin: "300px" }).observe(figure);
  }

  window.attentionExplorables = { start };
  const own = document.currentScript;
  if (own && own.src) {
    const address = new URL("vega/vega.min.js", own.src).href;
    document.addEventListener("DOMContentLoaded", () => {
      for (const figure of document.querySelectorAll("figure.explorable")) {
        start(figure, address);
      }
    });
  }
})();
