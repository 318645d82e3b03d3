import{a,b}from"./chunk-LWRGUXOS.js";import"./chunk-7WCWPSKF.js";import"./chunk-43NQ5MWF.js";export{b as AllEvents,a as Events};
