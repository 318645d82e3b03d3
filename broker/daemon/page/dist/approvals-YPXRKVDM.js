import{a,b}from"./chunk-GHVE5XMB.js";import"./chunk-3CT5HANP.js";import"./chunk-43NQ5MWF.js";export{b as Approvals,a as pending};
