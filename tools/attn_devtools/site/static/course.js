// The stepper's colours follow the theme: it reads the attribute that JupyterLab gives the body.
"use strict";

const root = document.documentElement;
const tellStepper = () => (document.body.dataset.jpThemeLight = root.dataset.theme !== "dark");
new MutationObserver(tellStepper).observe(root, { attributeFilter: ["data-theme"] });
document.addEventListener("DOMContentLoaded", tellStepper);
