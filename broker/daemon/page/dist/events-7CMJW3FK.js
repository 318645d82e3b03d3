import{a,b}from"./chunk-REBHZQU2.js";import"./chunk-DU2NZBF5.js";import"./chunk-43NQ5MWF.js";export{b as AllEvents,a as Events};
